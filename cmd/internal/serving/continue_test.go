package serving

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

func continuing(cfg *config) { cfg.pd.RetryFloor = 1000 }

// oneAnswer checks that a stream is whole: the right text, one end, usage as if
// nothing had happened, one id throughout, and no token ids.
func oneAnswer(t *testing.T, got, want answer) {
	t.Helper()
	if got.status != 200 || got.err != nil || got.text() != want.text() {
		t.Fatalf("%d, %v\ngot  %q\nwant %q", got.status, got.err, got.text(), want.text())
	}
	if n := strings.Count(got.body, "[DONE]"); n != 1 || got.events[len(got.events)-1] != "[DONE]" {
		t.Errorf("%d ends", n)
	}
	if strings.Contains(got.body, "token_ids") {
		t.Error("token ids reached the client")
	}
	if len(got.events) != len(want.events) {
		t.Errorf("%d events, undisturbed %d", len(got.events), len(want.events))
	}
	for _, field := range []string{"id", "object", "created", "model"} {
		for _, e := range got.events[:len(got.events)-1] {
			if gjson.Get(e, field).Raw != gjson.Get(got.events[0], field).Raw {
				t.Errorf("%s changes from %s to %s", field, gjson.Get(got.events[0], field).Raw, gjson.Get(e, field).Raw)
				break
			}
		}
	}
	usage, truth := gjson.Get(got.events[len(got.events)-2], "usage"), gjson.Get(want.events[len(want.events)-2], "usage")
	for _, field := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
		if usage.Get(field).Raw != truth.Get(field).Raw {
			t.Errorf("usage %s, undisturbed %s", usage.Raw, truth.Raw)
		}
	}
	if finish := gjson.Get(got.events[len(got.events)-3], "choices.0.finish_reason"); finish.Raw != gjson.Get(want.events[len(want.events)-3], "choices.0.finish_reason").Raw {
		t.Errorf("finish_reason %s", finish.Raw)
	}
}

func TestContinue_AHundredStreamsThatBreakEqualUndisturbedOnes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 3, config: continuing})
	truth := startTestEngine(t, engine.RoleBoth, nil)
	usage := `,"stream":true,"stream_options":{"include_usage":true}`
	draw := rand.New(rand.NewPCG(1, 2)) // servers that are alike take turns: no pattern is to fit theirs
	var live []int
	for i := range 100 {
		if i%3 == 0 {
			live = draw.Perm(3)
		}
		path, body := "/v1/chat/completions", chatBodyOf(45+i%30, usage)
		if i%2 == 1 {
			path = "/v1/completions"
			body = fmt.Sprintf(`{"model":"test-model","max_tokens":%d,"prompt":"Story %d: %s"%s}`, 45+i%30, i, longPrompt, usage)
		}
		for k, e := range c.decode {
			e.ClearFaults()
			// Two of three die, each once, after different numbers of tokens.
			if k != live[i%3] {
				e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 1 + i*7%40, Count: 1})
			}
		}
		oneAnswer(t, c.post(path, body), askEngine(t, truth, path, body))
	}
	if n := c.metric("tandem_continuations_total", `outcome="continued"`); n < 40 {
		t.Errorf("only %v streams were continued", n)
	}
	if n := c.metric("tandem_requests_total", `outcome="ok"`); n != 100 {
		t.Errorf("%v of 100 ok", n)
	}
	for _, e := range append(c.prefill, c.decode...) {
		if n := e.State().HandoffsRejectedByReason["already_pulled"]; n != 0 {
			t.Errorf("%d hand-offs were used twice", n)
		}
	}
	c.checkIdle(0)
}

func TestContinue_AnAnswerThatEndsByItselfAndAServerThatIsGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, config: continuing,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 2 }, // so that a busy machine sees it under way
	})
	body := strings.Replace(chatBody(`,"stream":true,"stream_options":{"include_usage":true}`), `"max_tokens":24,`, "", 1)
	got := make(chan answer, 1)
	go func() { got <- c.post("/v1/chat/completions", body) }()
	var busy *engine.Engine
	eventually(t, "a decode is under way", func() bool {
		for _, e := range c.decode {
			if e.State().Running == 1 {
				busy = e
			}
		}
		return busy != nil
	})
	if err := busy.Close(); err != nil {
		t.Log(err)
	}
	oneAnswer(t, <-got, reference(t, "/v1/chat/completions", body))
}

func TestContinue_WhatCannotBeContinuedEndsHonestly(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2, config: func(cfg *config) {
		continuing(cfg)
		cfg.pools.Breaker.Consecutive = 1 << 20 // all streams break here
	}})
	for _, e := range c.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 1})
	}
	for name, extra := range map[string]string{
		"json schema":     `,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}}`,
		"tools":           `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]`,
		"logprobs":        `,"logprobs":true`,
		"seed":            `,"seed":7`,
		"penalty":         `,"frequency_penalty":0.5`,
		"stop":            `,"stop":["x"]`,
		"unknown field":   `,"a_field_of_tomorrow":3`,
		"all servers die": ``,
	} {
		got := c.post("/v1/chat/completions", chatBody(`,"stream":true`+extra))
		if got.status != 200 || got.err == nil || strings.Contains(got.body, "[DONE]") || !gjson.Get(got.events[len(got.events)-1], "error.message").Exists() {
			t.Errorf("%s: %d, %v: %.300s", name, got.status, got.err, got.body)
		}
	}
	if n := c.metric("tandem_continuations_total", `outcome="continued"`); n > 2 {
		t.Errorf("%v continued", n)
	}
	c.checkIdle(0)
}

func TestContinue_TokenIDsStayForThoseWhoAskedForThem(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2, config: continuing})
	body := chatBody(`,"stream":true,"return_token_ids":true`)
	want := reference(t, "/v1/chat/completions", body)
	ids := func(a answer) (all string) {
		for _, e := range a.events {
			all += gjson.Get(e, "choices.0.token_ids").Raw
		}
		return all + gjson.Get(a.events[0], "prompt_token_ids").Raw
	}
	for range 4 { // one of them meets the fault, most likely the first two
		c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 4, Count: 1})
		if got := c.post("/v1/chat/completions", body); ids(got) != ids(want) || got.text() != want.text() {
			t.Errorf("got  %s\nwant %s", ids(got), ids(want))
		}
	}
}

func TestContinue_ABudgetBoundsTheStorm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, config: func(cfg *config) { cfg.pd.RetryFloor = 3 }})
	for _, e := range c.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 4})
	}
	began := time.Now()
	for range 50 {
		c.post("/v1/chat/completions", chatBody(`,"stream":true`))
	}
	floor := 3 * (1 + int(time.Since(began)/(10*time.Second))) // on a busy machine it takes longer
	legs := 0
	for _, e := range c.decode {
		for _, r := range e.State().Requests {
			if !strings.HasPrefix(r.RequestID, "tandem-canary-") {
				legs++
			}
		}
	}
	if legs > 50*12/10+floor {
		t.Errorf("%d decode legs for 50 requests", legs)
	}
}

// Token ids are asked for where they are told, and nowhere else: an engine that does not
// know the wish may refuse it.
func TestContinue_IsOnWhereEnginesTellTokenIDs(t *testing.T) {
	t.Parallel()
	completions := `{"model":"test-model","max_tokens":30,"stream":true,"prompt":"` + longPrompt + `"}`
	whole := func(connector string) func(*engine.Config) {
		return func(cfg *engine.Config) { cfg.Connector = connector }
	}
	for _, c := range []struct {
		name, path, body string
		engine           func(*engine.Config)
		asked            int // of five streams
		prefillAsked     int // whose decode then gets the ids
		continued        bool
	}{
		{"vllm", "/v1/chat/completions", chatBody(`,"stream":true`), whole(engine.ConnectorNIXL), 5, 0, true},
		{"vllm 0.32", "/v1/chat/completions", chatBody(`,"stream":true`), func(cfg *engine.Config) { cfg.Version = "0.32.0" }, 5, 5, true},
		{"vllm before 0.10.2", "/v1/chat/completions", chatBody(`,"stream":true`), func(cfg *engine.Config) { cfg.NoTokenIDs, cfg.Version = true, "0.10.1" }, 1, 0, false},
		{"sglang's chat", "/v1/chat/completions", chatBody(`,"stream":true`), whole(engine.ConnectorSGLang), 0, 0, false},
		{"sglang's completions", "/v1/completions", completions, whole(engine.ConnectorSGLang), 5, 0, true},
		{"tensorrt-llm", "/v1/chat/completions", chatBody(`,"stream":true`), whole(engine.ConnectorTRTLLM), 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cl := newCluster(t, shape{prefill: 1, decode: 2, engine: c.engine, config: continuing})
			first, second := strings.TrimPrefix(cl.decode[0].URL(), "http://"), strings.TrimPrefix(cl.decode[1].URL(), "http://")
			cl.node.fleet.SetDrain(second, true)
			want := reference(t, c.path, c.body)
			for range 5 {
				if got := cl.post(c.path, c.body); got.status != 200 || got.err != nil || got.text() != want.text() || strings.Contains(got.body, "token_ids") {
					t.Fatalf("%d %v %s", got.status, got.err, got.body)
				}
			}
			asked := 0
			streams := requests(cl.decode, c.path)
			if c.path != "/v1/completions" { // behind prefill's token
				streams = append(streams, requests(cl.decode, "/v1/completions")...)
			}
			for _, r := range streams {
				asked += strings.Count(r.Body, "return_token_ids")
			}
			if n := len(requests(cl.prefill, c.path)); asked != c.asked || n != 5 {
				t.Errorf("%d of 5 streams were asked for ids, want %d; %d prefills", asked, c.asked, n)
			}
			prefillAsked := 0
			for _, r := range requests(cl.prefill, c.path) {
				prefillAsked += strings.Count(r.Body, "return_token_ids")
			}
			if prefillAsked != c.prefillAsked {
				t.Errorf("prefill was asked for ids %d times, want %d", prefillAsked, c.prefillAsked)
			}
			cl.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 3, Count: 1})
			cl.node.orchestrator.Transport = whenAsked{cl.node.orchestrator.Transport, first, func() { cl.node.fleet.SetDrain(second, false) }}
			got := cl.post(c.path, c.body)
			if whole := got.err == nil && got.text() == want.text(); whole != c.continued || got.header.Get("X-Tandem-Decode") != first {
				t.Errorf("the stream that breaks on %s ended with %v: %s", got.header.Get("X-Tandem-Decode"), got.err, got.body)
			}
		})
	}
}

// A stream that breaks when the answer is whole lacks only its end: no other server is
// asked.
func TestContinue_AnAnswerThatIsWholeGetsItsEnd(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: continuing})
	for _, usage := range []string{`,"stream_options":{"include_usage":true}`, ""} {
		for path, body := range map[string]string{
			"/v1/chat/completions": chatBodyOf(12, `,"stream":true,"ignore_eos":true`+usage),
			"/v1/completions":      `{"model":"test-model","max_tokens":12,"ignore_eos":true,"prompt":"` + longPrompt + `","stream":true` + usage + `}`,
		} {
			want := reference(t, path, body)
			c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 12}) // a count might be a probe request's
			got := c.post(path, body)
			c.decode[0].ClearFaults()
			if usage != "" {
				oneAnswer(t, got, want)
			} else if got.err != nil || got.text() != want.text() || len(got.events) != len(want.events) || got.events[len(got.events)-1] != "[DONE]" {
				t.Errorf("%v: %q, want %q", got.err, got.events, want.events)
			}
		}
	}
	eventually(t, "four streams were ended", func() bool { return c.metric("tandem_continuations_total", `outcome="ended"`) == 4 })
	if n := c.metric("tandem_continuations_total", `outcome="continued"`); n != 0 {
		t.Errorf("%v were continued", n)
	}
}

// whenAsked does something when a server is asked.
type whenAsked struct {
	next http.RoundTripper
	host string
	do   func()
}

func (w whenAsked) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == w.host {
		w.do()
	}
	return w.next.RoundTrip(req)
}

// By text a chat goes on where engines tell no token ids, if the operator says so. The
// simulated template trims nothing and its text is tokenised as it was said, so here even
// that is exact.
func TestContinue_ByTextIsOptIn(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*engine.Config){
		"vllm before 0.10.2": func(cfg *engine.Config) { cfg.NoTokenIDs = true },
		"sglang":             func(cfg *engine.Config) { cfg.Connector = engine.ConnectorSGLang },
	} {
		for _, allowed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", name, allowed), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, shape{prefill: 1, decode: 2, engine: change, config: func(cfg *config) {
					continuing(cfg)
					cfg.pd.ContinueByText = allowed
					cfg.pools.Breaker.Consecutive = 1 << 20 // all streams break here
				}})
				ask := func(i int, extra string) (got, want answer) {
					for _, e := range c.decode {
						e.ClearFaults()
					}
					c.decode[rand.N(2)].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 1 + i*7%20, Count: 1})
					body := chatBodyOf(30+i, `,"stream":true,"stream_options":{"include_usage":true}`+extra)
					return c.post("/v1/chat/completions", body), reference(t, "/v1/chat/completions", body)
				}
				continued := func() float64 { return c.metric("tandem_continuations_total", `outcome="continued"`) }
				for i := 0; i < 20 || allowed && continued() < 5 && i < 200; i++ { // every other one meets the fault
					got, want := ask(i, "")
					if got.err != nil && !allowed {
						continue
					}
					if got.err != nil || got.text() != want.text() || strings.Count(got.body, "[DONE]") != 1 || strings.Count(got.body, `"role"`) != 1 {
						t.Errorf("%v\ngot  %s\nwant %s", got.err, got.body, want.body)
						continue
					}
					usage, truth := gjson.Get(got.events[len(got.events)-2], "usage"), gjson.Get(want.events[len(want.events)-2], "usage")
					for _, field := range []string{"prompt_tokens", "completion_tokens", "total_tokens"} {
						if usage.Get(field).Raw != truth.Get(field).Raw {
							t.Errorf("usage %s, undisturbed %s", usage.Raw, truth.Raw)
						}
					}
				}
				before := continued()
				if !allowed && before != 0 || allowed && before < 5 {
					t.Errorf("%v continued", before)
				}
				for i, extra := range []string{`,"seed":7`, `,"stop":["x"]`, `,"logprobs":true`, `,"frequency_penalty":0.5`} {
					ask(i, extra)
				}
				if continued() != before {
					t.Error("what text does not determine was continued")
				}
				c.checkIdle(0)
			})
		}
	}
}

// attempts are how a request was bound, each time, and what was known of its servers.
func (c *cluster) attempts(request string) []gjson.Result {
	c.t.Helper()
	return gjson.Get(c.get("/debug/decisions/"+request).body, "attempts").Array()
}

// A stream that breaks again and again does not go back to a server that broke it while
// there is another.
func TestContinue_OthersGoBeforeThoseOnWhichItBroke(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 3, config: func(cfg *config) {
		continuing(cfg)
		cfg.pools.Breaker.Consecutive = 1 << 20 // all streams break here
	}})
	for _, e := range c.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5})
	}
	for range 5 {
		got := c.post("/v1/chat/completions", chatBodyOf(60, `,"stream":true,"ignore_eos":true`))
		asked := map[string]bool{}
		attempts := c.attempts(got.header.Get("X-Request-Id"))
		for _, a := range attempts {
			asked[a.Get("alternatives.#(chosen==true).decode").String()] = true
		}
		if len(attempts) != 3 || len(asked) != 3 || got.err == nil {
			t.Errorf("%d legs on %v: %v", len(attempts), asked, got.err)
		}
	}
}

// Where no other server can take it, it goes back to the one that broke it.
func TestContinue_BackWhereNoOtherCan(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: continuing})
	body := chatBodyOf(60, `,"stream":true,"ignore_eos":true,"stream_options":{"include_usage":true}`)
	want := reference(t, "/v1/chat/completions", body)
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5, Path: "/v1/chat/completions"})
	oneAnswer(t, c.post("/v1/chat/completions", body), want)
}

// A continuation goes where its prompt is: what servers hold of the prompt, and of the
// answer so far, is known by its token ids, or of the prompt by its text.
func TestContinue_IsPricedByWhatServersHold(t *testing.T) {
	for _, tokens := range []string{"engine", "learned", "approximate"} {
		t.Run(tokens, func(t *testing.T) {
			t.Parallel()
			c := newPublishingCluster(t, 2, 2, tokens, continuing)
			body := chatBodyOf(100, `,"ignore_eos":true`)
			warm := c.post("/v1/chat/completions", body)
			prompt := gjson.Get(warm.body, "usage.prompt_tokens").Int()
			prefill, decode := warm.header.Get("X-Tandem-Prefill"), warm.header.Get("X-Tandem-Decode")
			if tokens != "approximate" {
				c.settle(prefill)
				c.settle(decode)
			}
			breaks := c.decode[0]
			if breaks.URL() == "http://"+decode {
				breaks = c.decode[1]
			}
			breaks.SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 70})
			c.node.fleet.SetDrain(decode, true)
			c.node.orchestrator.Transport = whenAsked{c.node.orchestrator.Transport, strings.TrimPrefix(breaks.URL(), "http://"), func() { c.node.fleet.SetDrain(decode, false) }}
			got := c.post("/v1/chat/completions", chatBodyOf(100, `,"ignore_eos":true,"stream":true`))
			attempts := c.attempts(got.header.Get("X-Request-Id"))
			if got.err != nil || got.text() != warm.text() || len(attempts) != 2 {
				t.Fatalf("%v, %d attempts: %s", got.err, len(attempts), got.body)
			}
			if n := attempts[1].Get("prompt_tokens").Int(); n < prompt+60 || n > prompt+70 {
				t.Errorf("of %d tokens, the prompt has %d", n, prompt)
			}
			for _, a := range attempts[1].Get("alternatives").Array() {
				if held := a.Get("prefill_cached").Int(); a.Get("prefill").String() == prefill && held < prompt/2 {
					t.Errorf("prefill, which had the prompt of %d: %s", prompt, a.Raw)
				}
				least := prompt + 32 // and answer
				if tokens == "approximate" {
					least = prompt / 2
				}
				if held := a.Get("decode_cached").Int(); a.Get("decode").String() == decode && held < least {
					t.Errorf("decode, which had the prompt of %d and the answer: %s", prompt, a.Raw)
				}
			}
		})
	}
}
