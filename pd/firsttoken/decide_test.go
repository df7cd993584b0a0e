package firsttoken

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
)

// Each condition alone takes the first token from prefill, with its reason; testdata/decide
// is the table that can be disputed.
func TestDecide_EachConditionHasItsReason(t *testing.T) {
	good := func() Case {
		return Case{
			Setting: FromPrefill, Dialect: api.Chat, Proved: true, BlockTokens: 16, Bounded: true,
			Said:   &api.FirstToken{Choices: 1, Prompt: 35, IDs: 1, Text: "He", Finish: "length"},
			Handed: connector.HandedBlocks{Blocks: 3, Tokens: 35},
		}
	}
	var table strings.Builder
	row := func(name string, change func(*Case)) {
		c := good()
		change(&c)
		use, reason := c.Decide()
		fmt.Fprintf(&table, "%-52s %-8s %s\n", name, use, reason)
	}
	row("all is well", func(*Case) {})
	row("a completion", func(c *Case) { c.Dialect = api.Completions })
	row("prefill is not asked yet", func(c *Case) { c.Said = nil })
	row("--first-token decode", func(c *Case) { c.Setting = FromDecode })
	row("/v1/responses", func(c *Case) { c.Dialect = api.Responses })
	row("/v1/messages", func(c *Case) { c.Dialect = api.Messages })
	row("an engine of which it is not known", func(c *Case) { c.Proved = false })
	row("KV blocks of unknown or unlike sizes", func(c *Case) { c.BlockTokens = 0 })
	row("a field that is not known to work", func(c *Case) { c.Field = "seed" })
	row("no bound on the answer, nor the model's length", func(c *Case) { c.Bounded = false })
	row("the rest of a stream that broke", func(c *Case) { c.Continues = true })
	row("max_tokens 1, not asked yet", func(c *Case) { c.OneToken, c.Said = true, nil })
	row("max_tokens 1", func(c *Case) { c.OneToken = true })
	row("max_tokens 1, blocks of unknown size", func(c *Case) { c.OneToken, c.BlockTokens = true, 0 })
	row("max_tokens 1 at a block's end", func(c *Case) { c.OneToken, c.Said.Prompt = true, 32 })
	row("max_tokens 1, no answer", func(c *Case) { c.OneToken, c.Said.Choices = true, 0 })
	row("the token ends the answer", func(c *Case) { c.Said.Finish, c.Said.Text = "stop", "" })
	row("the token ends the answer at a block's end", func(c *Case) { c.Said.Finish, c.Said.Prompt = "stop", 32 })
	for prompt := 31; prompt <= 33; prompt++ {
		row(fmt.Sprintf("a prompt of %d tokens", prompt), func(c *Case) {
			c.Said.Prompt, c.Handed = prompt, connector.HandedBlocks{Blocks: (prompt + 15) / 16, Tokens: prompt}
		})
	}
	row("no ids of the prompt", func(c *Case) { c.Said.Prompt = 0 })
	row("no ids of the answer", func(c *Case) { c.Said.IDs = 0 })
	row("two tokens", func(c *Case) { c.Said.IDs = 2 })
	row("no hand-off, or one that decode does not read", func(c *Case) { c.Handed = connector.HandedBlocks{} })
	row("a token less than the prompt was computed", func(c *Case) { c.Handed.Tokens = 34 })
	row("fewer blocks than the prompt has", func(c *Case) { c.Handed.Blocks = 2 })
	row("more blocks than the prompt has", func(c *Case) { c.Handed.Blocks = 4 })
	row("it ended with a tool call", func(c *Case) { c.Said.Finish = "tool_calls" })
	row("reasoning", func(c *Case) { c.Said.NotText = true })
	row("a token without text", func(c *Case) { c.Said.Text = "" })
	row("a token that may begin a stop string", func(c *Case) { c.Stops = []string{"zz", "ell"} })
	row("a token that begins none", func(c *Case) { c.Stops = []string{"xe", "lo", "Hi"} })
	row("a token that ends with one, which stays", func(c *Case) { c.Stops, c.Said.Finish = []string{"He"}, "stop" })
	row("a token that is one, which did not end it", func(c *Case) { c.Stops = []string{"He"} })
	row("a part of a character", func(c *Case) { c.Said.Text = "a\uFFFD" })

	file := filepath.Join("testdata", "decide")
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

// A setting is one of two words.
func TestSource_ValidateKnowsTwo(t *testing.T) {
	for source, want := range map[Source]bool{FromPrefill: true, FromDecode: true, "": false, "both": false} {
		if err := source.Validate(); (err == nil) != want {
			t.Errorf("%q: %v", source, err)
		}
	}
}

// What people read of a first token is what became of it and why, and nothing where the servers or the
// API are all that is why.
func TestOutcome_SaysWhyWhereTheRequestIsWhy(t *testing.T) {
	for want, outcome := range map[string]Outcome{
		"first: continues":       {First, "continues", ""},
		"unused: request (seed)": {Unused, "request", "seed"},
		"first":                  {First, "", ""},
	} {
		if got := outcome.String(); got != want {
			t.Errorf("%+v: %q, want %q", outcome, got, want)
		}
	}
	for _, reason := range []string{"off", "engine", "api"} {
		if got := (Outcome{Unused, reason, ""}).String(); got != "" {
			t.Errorf("%s: %q", reason, got)
		}
	}
}

// Stop strings are one text or a list of them, and each token is the likeliest at a temperature of 0
// that the request states.
func TestStopsAndIsGreedy_AsTheBodySaysThem(t *testing.T) {
	for text, want := range map[string]struct {
		stops  []string
		greedy bool
	}{
		`{}`:                              {nil, false},
		`{"stop":"x","temperature":0}`:    {[]string{"x"}, true},
		`{"stop":["x","yz"]}`:             {[]string{"x", "yz"}, false},
		`{"stop":null,"temperature":0.0}`: {nil, true},
		`{"stop":[],"temperature":0.01}`:  {nil, false},
		`{"temperature":null}`:            {nil, false},
		`{"temperature":"0"}`:             {nil, false},
	} {
		body, err := api.ParseBody([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := Stops(body); !slices.Equal(got, want.stops) {
			t.Errorf("%s: stops %q", text, got)
		}
		if got := IsGreedy(body); got != want.greedy {
			t.Errorf("%s: greedy %v", text, got)
		}
	}
}
