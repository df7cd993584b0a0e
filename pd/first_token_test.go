package pd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/transcript"
)

// Each condition alone takes the first token from prefill, with its reason; testdata/first_token
// is the table that can be disputed.
func TestFirstTokenFrom_EachConditionHasItsReason(t *testing.T) {
	good := func() firstTokenCase {
		return firstTokenCase{
			Setting: FirstFromPrefill, Dialect: api.Chat, Proved: true, BlockTokens: 16, Bounded: true,
			Said:   &api.FirstToken{Choices: 1, Prompt: 35, IDs: 1, Text: "He", Finish: "length"},
			Handed: connector.HandedBlocks{Blocks: 3, Tokens: 35},
		}
	}
	var table strings.Builder
	row := func(name string, change func(*firstTokenCase)) {
		c := good()
		change(&c)
		use, reason := firstTokenFrom(c)
		fmt.Fprintf(&table, "%-52s %-8s %s\n", name, use, reason)
	}
	row("all is well", func(*firstTokenCase) {})
	row("a completion", func(c *firstTokenCase) { c.Dialect = api.Completions })
	row("prefill is not asked yet", func(c *firstTokenCase) { c.Said = nil })
	row("--first-token decode", func(c *firstTokenCase) { c.Setting = FirstFromDecode })
	row("/v1/responses", func(c *firstTokenCase) { c.Dialect = api.Responses })
	row("/v1/messages", func(c *firstTokenCase) { c.Dialect = api.Messages })
	row("an engine of which it is not known", func(c *firstTokenCase) { c.Proved = false })
	row("KV blocks of unknown or unlike sizes", func(c *firstTokenCase) { c.BlockTokens = 0 })
	row("a field that is not known to work", func(c *firstTokenCase) { c.Field = "seed" })
	row("no bound on the answer, nor the model's length", func(c *firstTokenCase) { c.Bounded = false })
	row("the rest of a stream that broke", func(c *firstTokenCase) { c.Continues = true })
	row("the second token would miss the objective", func(c *firstTokenCase) { c.LateNext = true })
	row("max_tokens 1 with such an objective", func(c *firstTokenCase) { c.OneToken, c.LateNext = true, true })
	row("max_tokens 1, not asked yet", func(c *firstTokenCase) { c.OneToken, c.Said = true, nil })
	row("max_tokens 1", func(c *firstTokenCase) { c.OneToken = true })
	row("max_tokens 1, blocks of unknown size", func(c *firstTokenCase) { c.OneToken, c.BlockTokens = true, 0 })
	row("max_tokens 1 at a block's end", func(c *firstTokenCase) { c.OneToken, c.Said.Prompt = true, 32 })
	row("max_tokens 1, no answer", func(c *firstTokenCase) { c.OneToken, c.Said.Choices = true, 0 })
	row("the token ends the answer", func(c *firstTokenCase) { c.Said.Finish, c.Said.Text = "stop", "" })
	row("the token ends the answer at a block's end", func(c *firstTokenCase) { c.Said.Finish, c.Said.Prompt = "stop", 32 })
	for prompt := 31; prompt <= 33; prompt++ {
		row(fmt.Sprintf("a prompt of %d tokens", prompt), func(c *firstTokenCase) {
			c.Said.Prompt, c.Handed = prompt, connector.HandedBlocks{Blocks: (prompt + 15) / 16, Tokens: prompt}
		})
	}
	row("no ids of the prompt", func(c *firstTokenCase) { c.Said.Prompt = 0 })
	row("no ids of the answer", func(c *firstTokenCase) { c.Said.IDs = 0 })
	row("two tokens", func(c *firstTokenCase) { c.Said.IDs = 2 })
	row("no hand-off, or one that decode does not read", func(c *firstTokenCase) { c.Handed = connector.HandedBlocks{} })
	row("a token less than the prompt was computed", func(c *firstTokenCase) { c.Handed.Tokens = 34 })
	row("fewer blocks than the prompt has", func(c *firstTokenCase) { c.Handed.Blocks = 2 })
	row("more blocks than the prompt has", func(c *firstTokenCase) { c.Handed.Blocks = 4 })
	row("it ended with a tool call", func(c *firstTokenCase) { c.Said.Finish = "tool_calls" })
	row("reasoning", func(c *firstTokenCase) { c.Said.NotText = true })
	row("a token without text", func(c *firstTokenCase) { c.Said.Text = "" })
	row("a token that may begin a stop string", func(c *firstTokenCase) { c.Stops = []string{"zz", "ell"} })
	row("a token that begins none", func(c *firstTokenCase) { c.Stops = []string{"xe", "lo", "Hi"} })
	row("a token that ends with one, which stays", func(c *firstTokenCase) { c.Stops, c.Said.Finish = []string{"He"}, "stop" })
	row("a part of a character", func(c *firstTokenCase) { c.Said.Text = "a\uFFFD" })

	file := filepath.Join("testdata", "first_token")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(file, []byte(table.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if table.String() != string(want) {
		t.Errorf("with UPDATE=1 this becomes the table:\n%s\nwant:\n%s", table.String(), want)
	}
}

// Fields that say nothing, shape the prompt alone, or were seen to work let prefill begin the
// answer; every other one, also one that is not known yet, does not.
func TestNotFromPrefill_FieldsThatAreNotProved(t *testing.T) {
	for fields, want := range map[string]string{
		``: "", `,"temperature":0.7,"top_p":0.9,"top_k":5`: "", `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`: "",
		`,"n":1,"seed":null,"stop":[],"logprobs":false,"tools":null,"frequency_penalty":0,"min_tokens":0`:             "",
		`,"chat_template_kwargs":{"enable_thinking":false},"user":"ada","ignore_eos":true,"skip_special_tokens":true`: "",
		`,"stop":"x","include_stop_str_in_output":true`:                                                               "", `,"stop":["x","y"]`: "", `,"logprobs":true,"top_logprobs":2`: "", `,"repetition_penalty":1.1`: "",
		`,"tools":[{}],"tool_choice":"none"`: "", `,"tools":[{}],"tool_choice":"auto"`: "tools", `,"tools":[{}],"tool_choice":"required"`: "tools",
		`,"tool_choice":{"type":"function"}`: "tool_choice", `,"tools":[{}],"tool_choice":"none","seed":1`: "seed",
		`,"seed":7`: "seed", `,"min_tokens":1`: "min_tokens", `,"n":2`: "n",
		`,"skip_special_tokens":false`: "skip_special_tokens", `,"truncate_prompt_tokens":8`: "truncate_prompt_tokens",
		`,"stream_options":{"some_day":true}`: "stream_options", `,"tools":[{}]`: "tools", `,"echo":true`: "echo", `,"new":1`: "new",
		`,"presence_penalty":0.1`: "presence_penalty", `,"response_format":{"type":"json_object"}`: "response_format",
		`,"continue_final_message":true`: "continue_final_message", `,"bad_words":["x"]`: "bad_words",
	} {
		body, err := api.ParseBody([]byte(`{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"a"}]` + fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := transcript.NotFromPrefill(body); got != want {
			t.Errorf("%s: %q, want %q", fields, got, want)
		}
	}
	body, err := api.ParseBody([]byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`))
	if got := transcript.NotFromPrefill(body); err != nil || got != "messages" {
		t.Errorf("an image: %q, %v", got, err)
	}
}

// A completion that does not say how long it may be has 16 tokens: what goes on behind prefill's
// token, or behind a break, has no more of them.
func TestBound_OfACompletionIsThatOfTheAPI(t *testing.T) {
	for _, x := range []struct {
		dialect *api.Dialect
		own     int
		want    int
		field   string
	}{{api.Completions, 0, 16, "max_tokens"}, {api.Completions, 7, 7, "max_tokens"}, {api.Chat, 0, 0, ""}, {api.Chat, 7, 7, "max_tokens"}} {
		r := &Request{Dialect: x.dialect, MaxOutput: x.own}
		if x.own > 0 {
			r.MaxField = "max_tokens"
		}
		if got := r.forTranscript(); got.MaxOutput != x.want || got.MaxField != x.field {
			t.Errorf("%s of %d: %d by %q", x.dialect.Name, x.own, got.MaxOutput, got.MaxField)
		}
	}
}
