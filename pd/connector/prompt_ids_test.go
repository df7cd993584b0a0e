package connector

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
)

// answerFields say nothing of the prompt: the prefill leg may change them, by dialect. All
// fields that it does change must be here.
var answerFields = map[string][]string{
	"stream":                   {"true", "false"},
	"stream_options":           {`{"include_usage":true}`},
	"min_tokens":               {"2"},
	"min_completion_tokens":    {"2"},
	"logprobs":                 {"true"},
	"top_logprobs":             {"2"},
	"stop":                     {`"river"`, `["a","b"]`},
	"stop_sequences":           {`["river"]`},
	"stop_token_ids":           {"[7,8]"},
	"ignore_eos":               {"true", "false"},
	"max_tokens":               {"3", "30"},
	"max_completion_tokens":    {"3", "30"},
	"max_output_tokens":        {"3", "30"},
	"n":                        {"1"},
	"best_of":                  {"1"},
	"return_token_ids":         {"true", "false"},
	"enable_response_messages": {"true", "false"},
	"kv_transfer_params":       nil,
}

// promptFields shape the prompt.
var promptFields = map[string][]string{
	"tools":                  {`[{"type":"function","name":"f","function":{"name":"f","parameters":{"type":"object","b":1,"a":2}}}]`},
	"system":                 {`"You are brief."`},
	"instructions":           {`"You are brief."`},
	"add_generation_prompt":  {"false"},
	"add_special_tokens":     {"false"},
	"truncate_prompt_tokens": {"9"},
	"cache_salt":             {`"s"`},
	"temperature":            {"0.5"},
	"seed":                   {"9007199254740993"},
}

// Both legs of a request make the same tokens of its prompt, whatever it says of its
// answer.
func TestPrefillLeg_TokenisesAsDecodeDoes(t *testing.T) {
	cfg := engine.Default()
	cfg.TimeScale, cfg.MaxModelLen = 0, 512 // some answers end with the context
	e, err := engine.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	rng := rand.New(rand.NewPCG(1, 2))
	const prompt = "the history of the river and of the bridge across it"
	for d, text := range map[*api.Dialect]string{
		api.Chat:        `"messages":[{"role":"user","content":"` + prompt + `"}]`,
		api.Completions: `"prompt":"` + prompt + `"`,
		api.Responses:   `"input":"` + prompt + `"`,
		api.Messages:    `"max_tokens":40,"messages":[{"role":"user","content":"` + prompt + `"}]`,
	} {
		for range 60 {
			body := randomBody(t, rng, d, text)
			leg := promptLeg(t, d, body, rng.IntN(2) == 0)
			if prefill, decode := promptTokens(t, e, d, leg), promptTokens(t, e, d, body); prefill != decode {
				t.Fatalf("%s: %d tokens of\n%s\n%d of\n%s", d.Name, prefill, leg.Bytes(), decode, body.Bytes())
			}
		}
	}
}

// randomBody has some of all fields.
func randomBody(t *testing.T, rng *rand.Rand, d *api.Dialect, text string) api.Body {
	t.Helper()
	body, err := api.ParseBody([]byte(`{"model":"sim-model",` + text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, fields := range []map[string][]string{answerFields, promptFields} {
		for name, values := range fields {
			if len(values) > 0 && rng.IntN(2) == 0 && body.Get(name) == nil {
				body = body.With(api.Set(name, []byte(values[rng.IntN(len(values))])))
			}
		}
	}
	if streams, _ := body.Get("stream").Bool(); !streams {
		body = body.With(api.Remove("stream_options"))
	}
	if d == api.Completions { // where it is a number
		body = body.With(api.Remove("logprobs"), api.Remove("tools"))
	}
	if wanted, _ := body.Get("logprobs").Bool(); !wanted {
		body = body.With(api.Remove("top_logprobs"))
	}
	return body
}

// promptLeg is a prefill leg of vLLM, without what only an engine of its connector reads.
func promptLeg(t *testing.T, d *api.Dialect, body api.Body, ids bool) api.Body {
	t.Helper()
	server := &pools.Server{Spec: pools.Spec{URL: "http://d:8000", Connector: "nixl"}}
	tr := &Transfer{dialect: d, body: body, From: server, To: server, ID: "x", TokenIDs: ids}
	leg := nixlPrefill(tr).Body
	for _, name := range slices.Concat(leg.Keys(), body.Keys()) {
		_, may := answerFields[name]
		if !may && !bytes.Equal(leg.Get(name), body.Get(name)) {
			t.Fatalf("the prefill leg changes %s from %s to %s", name, body.Get(name), leg.Get(name))
		}
	}
	return leg
}

// promptTokens is the prompt's length as an engine counts it.
func promptTokens(t *testing.T, e *engine.Engine, d *api.Dialect, body api.Body) int {
	t.Helper()
	if streams, _ := body.Get("stream").Bool(); streams {
		body = body.With(api.Set("stream", []byte("false")), api.Remove("stream_options"))
	}
	resp, err := (&http.Client{Timeout: time.Minute}).Post(e.URL()+d.Path, "application/json", bytes.NewReader(body.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !json.Valid(raw) {
		t.Fatalf("%d %s, %v: %s", resp.StatusCode, raw, err, body.Bytes())
	}
	usage, _ := d.ReadUsage(raw)
	return usage.Prompt.Tokens
}

// A chat with a part that is no text is not given as ids, wherever the part stands.
func TestHasMedia_FindsPartsThatAreNoText(t *testing.T) {
	for messages, want := range map[string]bool{
		``: false, `null`: false, `[]`: false, `[{"role":"user","content":"a [1] {\"type\":\"image_url\"}"}]`: false,
		`[{"role":"user","content":[{"type":"text","text":"[a"}]}]`:                                                                    false,
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}]`:                        true,
		`[{"role":"user","content":"a"},{"role":"user","content":[{"image_url":{"url":"u"}}]}]`:                                        true,
		`[{"role":"user","content":["a", 1]},{"role":"user","content":[{"\u0074ype":"\u0074ext","text":"a"}],"x":[{"type":"image"}]}]`: false,
		`[{"content":[{"type":1}]}]`: true,
		`[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"},"image_url":null}]}]`: false,
		`[{"role":"user","content":[{"type":"text","text":"a","image_url":"https://h/c.png"}]}]`:                         true, // vLLM takes it for an image
	} {
		if got := hasMedia(api.Value(messages)); got != want {
			t.Errorf("%s: %v", messages, got)
		}
	}
}
