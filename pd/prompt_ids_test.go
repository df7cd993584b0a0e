package pd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
)

func TestOutgrows(t *testing.T) {
	for _, c := range []struct {
		decode, prefill, block int
		want                   bool
	}{
		{100, 100, 16, false},
		{112, 100, 16, true}, // one full block more
		{113, 112, 16, true}, // one more, if the last one counts too
		{97, 96, 16, true},
		{111, 110, 16, false},
		{90, 200, 16, false}, // shorter is wrong too, but ends nobody
		{112, 0, 16, false},
		{0, 100, 16, false},
		{112, 100, 0, false},
	} {
		if got := outgrows(c.decode, c.prefill, c.block); got != c.want {
			t.Errorf("%d tokens against %d in blocks of %d: %v", c.decode, c.prefill, c.block, got)
		}
	}
}

// What the gateway knows of a prompt keeps a hand-off from an engine that it would end.
func TestOutgrown_IsNotHandedOver(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(320))
	f.await(t, func() bool {
		return !slices.ContainsFunc(f.Fleet.Servers(), func(s *pools.Server) bool { return s.Identity().BlockTokens != "16" })
	})
	for prefill, want := range map[int]bool{160: false, 159: true, 150: true} {
		now := time.Now()
		j := f.arrives(testPrompt(160), now)
		a, err := f.Binder.bindNow(j)
		if err != nil || a.prefill == nil {
			t.Fatalf("%+v, %v", a, err)
		}
		tr := newTransfer(j, a)
		a.handoff = tr.handoff()
		answer := fmt.Sprintf(`{"usage":{"prompt_tokens":%d},"kv_transfer_params":{"remote_block_ids":[[1]]}}`, prefill)
		a.handoff.take(tr, []byte(answer), now)
		failed := f.outgrown(j, a, tr)
		if (failed != nil) != want || failed != nil && (failed.lostConnection() || !j.retryWithoutBudget) {
			t.Errorf("%d tokens on prefill, 160 on decode: %v", prefill, failed)
		}
		j.release()
	}
}

// answerFields say nothing of the prompt: the prefill leg may change them, by dialect. All
// fields that it does change must be here.
var answerFields = map[string][]string{
	"stream":                {"true", "false"},
	"stream_options":        {`{"include_usage":true}`},
	"min_tokens":            {"2"},
	"min_completion_tokens": {"2"},
	"logprobs":              {"true"},
	"top_logprobs":          {"2"},
	"stop":                  {`"river"`, `["a","b"]`},
	"stop_sequences":        {`["river"]`},
	"stop_token_ids":        {"[7,8]"},
	"ignore_eos":            {"true", "false"},
	"max_tokens":            {"3", "30"},
	"max_completion_tokens": {"3", "30"},
	"max_output_tokens":     {"3", "30"},
	"n":                     {"1"},
	"best_of":               {"1"},
	"return_token_ids":      {"true", "false"},
	"kv_transfer_params":    nil,
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
	for d, text := range map[*Dialect]string{
		Chat:        `"messages":[{"role":"user","content":"` + prompt + `"}]`,
		Completions: `"prompt":"` + prompt + `"`,
		Responses:   `"input":"` + prompt + `"`,
		Messages:    `"max_tokens":40,"messages":[{"role":"user","content":"` + prompt + `"}]`,
	} {
		for range 60 {
			req := &Request{Dialect: d, Body: randomBody(t, rng, d, text), Answers: 1}
			leg := promptLeg(t, req, rng.IntN(2) == 0)
			if prefill, decode := promptTokens(t, e, d, leg), promptTokens(t, e, d, req.Body); prefill != decode {
				t.Fatalf("%s: %d tokens of\n%s\n%d of\n%s", d.Name, prefill, leg.Bytes(), decode, req.Body.Bytes())
			}
		}
	}
}

// randomBody has some of all fields.
func randomBody(t *testing.T, rng *rand.Rand, d *Dialect, text string) Body {
	t.Helper()
	body, err := ParseBody([]byte(`{"model":"sim-model",` + text + `}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, fields := range []map[string][]string{answerFields, promptFields} {
		for name, values := range fields {
			if len(values) > 0 && rng.IntN(2) == 0 && body.Get(name) == nil {
				body = body.With(Edit{name, []byte(values[rng.IntN(len(values))])})
			}
		}
	}
	if streams, _ := body.Get("stream").Bool(); !streams {
		body = body.With(Edit{Key: "stream_options"})
	}
	if d == Completions { // where it is a number
		body = body.With(Edit{Key: "logprobs"}, Edit{Key: "tools"})
	}
	if wanted, _ := body.Get("logprobs").Bool(); !wanted {
		body = body.With(Edit{Key: "top_logprobs"})
	}
	return body
}

// promptLeg is a prefill leg of vLLM, without what only an engine of its connector reads.
func promptLeg(t *testing.T, req *Request, ids bool) Body {
	t.Helper()
	server := &pools.Server{Spec: pools.Spec{URL: "http://d:8000", Connector: "nixl"}}
	tr := &transfer{req: req, from: server, to: server, id: "x", tokenIDs: ids}
	leg := nixlPrefill(tr).body
	for _, name := range slices.Concat(leg.Keys(), req.Body.Keys()) {
		_, may := answerFields[name]
		if !may && !bytes.Equal(leg.Get(name), req.Body.Get(name)) {
			t.Fatalf("the prefill leg changes %s from %s to %s", name, req.Body.Get(name), leg.Get(name))
		}
	}
	return leg
}

// promptTokens is the prompt's length as an engine counts it.
func promptTokens(t *testing.T, e *engine.Engine, d *Dialect, body Body) int {
	t.Helper()
	if streams, _ := body.Get("stream").Bool(); streams {
		body = body.With(Edit{"stream", []byte("false")}, Edit{Key: "stream_options"})
	}
	resp, err := http.Post(e.URL()+d.Path, "application/json", body.Reader())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !json.Valid(raw) {
		t.Fatalf("%d %s, %v: %s", resp.StatusCode, raw, err, body.Bytes())
	}
	usage, _ := d.readUsage(raw)
	return usage.Prompt.Tokens
}

// The engine cuts such prompts otherwise on a leg whose answer is bounded, so they have
// but one.
func TestTruncatesByAnswer(t *testing.T) {
	for body, want := range map[string]bool{
		`{"truncate_prompt_tokens":-1}`: true, `{"truncate_prompt_tokens":9}`: false, `{"truncate_prompt_tokens":null}`: false,
		`{"truncation":"auto"}`: true, `{"truncation":"disabled"}`: false, `{}`: false,
	} {
		parsed, _ := ParseBody([]byte(body))
		if got := truncatesByAnswer(&Request{Dialect: Responses, Body: parsed}); got != want {
			t.Errorf("%s: %v", body, got)
		}
	}
}

// A request of whose hand-off an engine died is not handed over again.
func TestDeath_OfAHandOffMakesTheRequestRunWhole(t *testing.T) {
	f := newTestFleet(t, 1, testPrompt(320))
	now := time.Now()
	j := f.arrives(testPrompt(160), now)
	a, err := f.Binder.bindNow(j)
	if err != nil || a.prefill == nil {
		t.Fatalf("%+v, %v", a, err)
	}
	j.given = newTransfer(j, a).handoff()
	j.given.Kept = true
	failed := &LegError{Leg: DecodeLeg, Server: a.decode.Server().ID(), Kind: Broken, Status: http.StatusInternalServerError,
		Body: []byte(`{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}`)}
	if !failed.engineDied() || f.Suspects.Died(j.came.Fingerprint(), j.death(failed), now) {
		t.Errorf("%+v", failed)
	}
	again, other := f.arrives(testPrompt(160), now), f.journey(&Request{Dialect: Completions}, now)
	if !again.alone || other.alone {
		t.Errorf("the request again: %v, another: %v", again.alone, other.alone)
	}
	j.release()
	if list := f.Suspects.List(now); len(list) != 1 || !strings.Contains(list[0].Causes[0], "chat template") {
		t.Errorf("%+v", list)
	}
}
