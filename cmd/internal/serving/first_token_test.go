package serving

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/firsttoken"
	"github.com/tandem-gateway/tandem/pools"
)

// takesFirst is an engine behind whose prefill decode can go on.
func takesFirst(cfg *engine.Config) { cfg.Version = "0.32.0" }

// askFor is a request of chat or completions whose prompt has so many words.
func askFor(path string, words int, extra string) string {
	said := fmt.Sprintf("Number %d. ", words) + strings.Join(strings.Fields(longPrompt)[:words], " ")
	if path == "/v1/completions" {
		return fmt.Sprintf(`{"model":"test-model","prompt":%q%s}`, said, extra)
	}
	return fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":%q}]%s}`, said, extra)
}

// plain is an event or a whole answer without what two runs may differ in: the id, the time and
// what was cached. A field that is null is none.
func plain(t *testing.T, data string) any {
	t.Helper()
	if data == "[DONE]" {
		return data
	}
	var event map[string]any
	if err := json.Unmarshal([]byte(data), &event); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	delete(event, "id")
	delete(event, "created")
	if usage, ok := event["usage"].(map[string]any); ok {
		delete(usage, "prompt_tokens_details")
	}
	return withoutNulls(event)
}

func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, member := range v {
			if v[key] = withoutNulls(member); member == nil {
				delete(v, key)
			}
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return v
}

// sameAnswer compares two answers event for event.
func sameAnswer(t *testing.T, what string, got, want answer) {
	t.Helper()
	if got.status != want.status || got.err != nil || len(got.events) != len(want.events) {
		t.Errorf("%s: status %d, %v, %d events, want %d:\n%s\n%s", what, got.status, got.err, len(got.events), len(want.events), got.body, want.body)
		return
	}
	if len(got.events) == 0 {
		got.events, want.events = []string{got.body}, []string{want.body}
	}
	for i := range got.events {
		if g, w := plain(t, got.events[i]), plain(t, want.events[i]); !reflect.DeepEqual(g, w) {
			t.Fatalf("%s, event %d:\ngot  %s\nwant %s", what, i, got.events[i], want.events[i])
		}
	}
}

func (c *cluster) firstTokens(use, reason string) float64 {
	return c.metric("tandem_first_tokens_total", `use="`+use+`"`, `reason="`+reason)
}

// unbounded leaves it to the engine how long the answer may be: 16 tokens of a completion.
var unbounded = map[string]string{"/v1/chat/completions": `,"max_completion_tokens":5`, "/v1/completions": ``}

// askLogprobs asks for log-probabilities.
var askLogprobs = map[string]string{"/v1/chat/completions": `,"logprobs":true,"top_logprobs":3`, "/v1/completions": `,"logprobs":3`}

// An answer that prefill begins is, event for event, that of one engine; and where its token
// would begin a KV block, where decode's engine would die, decode computes it.
func TestFirstToken_AnswersAreThoseOfOneEngine(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst})
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	asked := 0
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		for i, extra := range []string{
			`,"max_tokens":9`, `,"max_tokens":2,"temperature":0`, `,"max_tokens":1`,
			`,"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}`,
			`,"max_tokens":9,"stream":true`,
			`,"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}`,
			`,"max_tokens":7,"stream":true,"ignore_eos":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			`,"max_tokens":7,"stream":true,"return_token_ids":true`, `,"max_tokens":7,"return_token_ids":true`,
			`,"max_tokens":1,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			`,"max_tokens":9` + askLogprobs[path], `,"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}` + askLogprobs[path],
			`,"max_tokens":9,"stream":true,"return_token_ids":true,"repetition_penalty":1.2` + askLogprobs[path], `,"max_tokens":1` + askLogprobs[path],
			`,"max_tokens":30,"stop":["e a",". "]`, `,"max_tokens":30,"stream":true,"stop":"s","stream_options":{"include_usage":true}`,
			`,"max_tokens":30,"stream":true,"stop":["on","th"],"include_stop_str_in_output":true`,
			`,"max_tokens":9,"stream":true,"tool_choice":"none","tools":[{"type":"function","function":{"name":"look","parameters":{}}}]`,
			`,"max_tokens":9,"tool_choice":"none","tools":[{"type":"function","function":{"name":"look","parameters":{}}}]`,
			`,"max_tokens":9,"min_tokens":6,"stream":true`, `,"max_tokens":9,"min_tokens":9`,
			`,"max_tokens":4,"max_completion_tokens":7`, unbounded[path] + `,"stream":true,"stream_options":{"include_usage":true}`, unbounded[path],
		} {
			for words := 20; words < 56; words++ { // some four KV blocks, and all places in one
				body := strings.Replace(askFor(path, words, extra), "Number", fmt.Sprintf("Case %d, number", i), 1)
				sameAnswer(t, path+" "+extra, c.post(path, body), askEngine(t, truth, path, body))
				asked++
			}
		}
	}
	first, all, boundary := c.firstTokens("first", "continues"), c.firstTokens("all", "one_token"), c.firstTokens("unused", "block_boundary")
	redrawn, stop := c.firstTokens("redrawn", "stop_string"), c.firstTokens("all", "stop") // decode says what may begin one
	t.Logf("%d requests: prefill began %v answers, gave %v whole and %v that its token ended, left %v to decode that may begin a stop string, and %v times its token would have begun a block", asked, first, all, stop, redrawn, boundary)
	if first < 800 || all < 180 || boundary < 50 || redrawn < 5 || first+all+boundary+redrawn+stop != float64(asked) {
		t.Error("too few of one kind")
	}
	if s := c.decode[0].State(); s.EngineDeaths != 0 || s.Recomputed != 0 {
		t.Errorf("decode: %d deaths, recomputed %v", s.EngineDeaths, s.RecomputedByReason)
	}
	if n := c.metric("tandem_prompt_mismatches_total") + c.metric("tandem_silent_recomputes_total") + c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
	if n := c.metric("tandem_handoffs_stranded_total"); n != c.firstTokens("all", "stop") {
		t.Errorf("%v hand-offs are left to their leases, %v answers ended with their first token", n, c.firstTokens("all", "stop"))
	}
	c.checkIdle(0)
}

// openStream sends a request and returns its events as they come.
func (c *cluster) openStream(ctx context.Context, path, body string) (next func() string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		return ""
	}
}

// The client has the first token while the KV travels; a client that leaves then leaves
// nothing behind.
func TestFirstToken_ComesWhileTheKVTravels(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) {
		takesFirst(cfg)
		cfg.TimeScale, cfg.LinkLatency = 1, time.Hour
	}})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	body := askFor("/v1/chat/completions", 61, `,"max_tokens":9,"stream":true`)
	next := c.openStream(ctx, "/v1/chat/completions", body)
	role, token := next(), next()
	if gjson.Get(role, "choices.0.delta.role").String() != "assistant" || gjson.Get(token, "choices.0.delta.content").String() == "" {
		t.Fatalf("%s\n%s", role, token)
	}
	eventually(t, "the KV is on its way", func() bool { return c.decode[0].State().Waiting == 1 })
	if n := c.metric("tandem_ttft_seconds_count"); n != 1 {
		t.Errorf("%v times to the first token were measured", n)
	}
	leave()
	eventually(t, "decode has nothing to do", func() bool { return c.decode[0].State().Waiting == 0 })
	c.checkIdle(1)
	eventually(t, "prefill holds nothing", func() bool { return c.prefill[0].State().HandoffsOpen == 0 })
}

// A decode that fails behind prefill's token is a stream that broke: another one goes on from
// that token, and nothing is said twice.
func TestFirstToken_DecodeFailsBehindIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: takesFirst, config: continuing})
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	usage := `,"max_tokens":12,"stream":true,"stream_options":{"include_usage":true}`
	faults := []engine.Fault{
		{Kind: engine.FaultRefuse, Leg: "decode", Count: 1},
		{Kind: engine.FaultStatus, Status: 500, Leg: "decode", Count: 1},
		{Kind: engine.FaultStatus, Status: 503, Leg: "decode", Count: 1},
		{Kind: engine.FaultDieAfterTokens, Tokens: 4, Leg: "decode", Count: 1},
	}
	for i := range 40 {
		path := []string{"/v1/chat/completions", "/v1/completions"}[i%2]
		body := askFor(path, 60+i, usage)
		for k, d := range c.decode {
			d.ClearFaults()
			if k == i/2%2 {
				fault := faults[i/4%len(faults)]
				fault.Path = path
				d.SetFault(fault)
			}
		}
		oneAnswer(t, c.post(path, body), askEngine(t, truth, path, body))
	}
	if n := c.metric("tandem_continuations_total", `outcome="continued"`); n < 8 {
		t.Errorf("only %v streams were continued", n)
	}
	for _, e := range append(c.prefill, c.decode...) {
		if n := e.State().HandoffsRejectedByReason["already_pulled"]; n != 0 {
			t.Errorf("%d hand-offs were used twice", n)
		}
	}
}

// The same without streams: nothing was said yet, and it is tried again as any leg is.
func TestFirstToken_WholeAnswersAreTriedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: takesFirst, config: continuing})
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	for i := range 12 {
		c.decode[i%2].ClearFaults()
		c.decode[i%2].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "decode", Path: "/v1/chat/completions", Count: 1})
		body := askFor("/v1/chat/completions", 60+i, `,"max_tokens":12`)
		sameAnswer(t, body, c.post("/v1/chat/completions", body), askEngine(t, truth, "/v1/chat/completions", body))
	}
	if n := c.metric("tandem_retries_total"); n < 3 {
		t.Errorf("only %v legs were tried again", n)
	}
}

// Where streams are not continued, one whose decode fails behind prefill's token ends honestly.
func TestFirstToken_BreaksHonestlyWithoutMigration(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst, config: func(cfg *config) { cfg.pd.ContinueStreams = false }})
	body := askFor("/v1/chat/completions", 60, `,"max_tokens":12,"stream":true`)
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "decode", Count: 1})
	got := c.post("/v1/chat/completions", body)
	if got.status != 200 || got.err == nil || strings.Contains(got.body, "[DONE]") || !gjson.Get(got.events[len(got.events)-1], "error.message").Exists() {
		t.Errorf("%d, %v: %s", got.status, got.err, got.body)
	}
	sameAnswer(t, "the next", c.post("/v1/chat/completions", body), reference(t, "/v1/chat/completions", body))
}

// Nor is one continued of which the tokens so far are not all: log-probabilities, stop strings.
func TestFirstToken_BreaksHonestlyWhereNothingContinues(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: takesFirst, config: continuing})
	for i, extra := range []string{`,"logprobs":true`, `,"stop":"never said"`} {
		body := askFor("/v1/chat/completions", 60+i, `,"max_tokens":12,"stream":true`+extra)
		for _, d := range c.decode {
			d.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "decode", Count: 1})
		}
		got := c.post("/v1/chat/completions", body)
		if got.status != 200 || got.err == nil || strings.Contains(got.body, "[DONE]") || !gjson.Get(got.events[len(got.events)-1], "error.message").Exists() {
			t.Errorf("%s: %d, %v: %s", extra, got.status, got.err, got.body)
		}
	}
	if n := c.firstTokens("first", "continues"); n != 2 {
		t.Errorf("prefill began %v", n)
	}
}

// What is not known to work across the seam is said by decode from its first token on.
func TestFirstToken_DecodeSaysItWhereNothingElseIsProved(t *testing.T) {
	t.Parallel()
	for reason, extras := range map[string][]string{
		"request": {
			`,"seed":7`, `,"bad_words":["x"]`, `,"frequency_penalty":0.5`, `,"presence_penalty":0.5`, `,"min_tokens":3,"stop":"never said"`,
			`,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]`,
			`,"response_format":{"type":"json_object"}`, `,"skip_special_tokens":false`, `,"a_field_of_tomorrow":3`,
		},
	} {
		c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst})
		truth := startTestEngine(t, engine.RoleBoth, takesFirst)
		for i, extra := range extras {
			for _, stream := range []string{"", `,"stream":true`} {
				body := askFor("/v1/chat/completions", 60+i, `,"max_tokens":9`+extra+stream)
				sameAnswer(t, extra, c.post("/v1/chat/completions", body), askEngine(t, truth, "/v1/chat/completions", body))
			}
			if n := c.firstTokens("unused", reason); n != float64(2*i+2) {
				t.Errorf("%s: %v of %d by decode for the reason %s", extra, n, 2*i+2, reason)
			}
		}
	}
	for reason, config := range map[string]func(*config){"off": func(cfg *config) { cfg.pd.FirstToken = firsttoken.FromDecode }, "engine": nil} {
		change := takesFirst
		if reason == "engine" {
			change = nil
		}
		c := newCluster(t, shape{prefill: 1, decode: 1, engine: change, config: config})
		c.post("/v1/chat/completions", chatBody(`,"stream":true`))
		if n := c.firstTokens("unused", reason); n != 1 {
			t.Errorf("%s: %v", reason, n)
		}
	}
}

// An answer that ends with prefill's token ends there: decode is not asked.
func TestFirstToken_ThatEndsTheAnswer(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst})
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		words, said := 60, answer{}
		for ends := true; ends; words++ { // not one that ends with a block
			said = askEngine(t, truth, path, askFor(path, words+1, `,"max_tokens":1,"return_token_ids":true`))
			ends = gjson.Get(said.body, "usage.prompt_tokens").Int()%16 == 0
		}
		id := gjson.Get(said.body, "choices.0.token_ids.0").Int()
		for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			body := askFor(path, words, fmt.Sprintf(`,"max_tokens":9,"stop_token_ids":[%d]%s`, id, stream))
			got := c.post(path, body)
			sameAnswer(t, body, got, askEngine(t, truth, path, body))
			if !strings.Contains(got.body, `"finish_reason":"stop"`) {
				t.Error(got.body)
			}
		}
	}
	if n, all := len(requests(c.decode, "/v1/chat/completions"))+len(requests(c.decode, "/v1/completions")), c.firstTokens("all", "stop"); n != 0 || all != 4 {
		t.Errorf("decode was asked %d times, prefill gave %v answers", n, all)
	}
	c.checkIdle(0)
}

// A token that is a part of a character is not said before the rest of it is there: decode
// says it, the same one that prefill has drawn.
func TestFirstToken_ThatIsPartOfACharacter(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst})
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	emoji := gjson.Get(askEngine(t, truth, "/tokenize", `{"model":"test-model","prompt":"🚲","add_special_tokens":false}`).body, "tokens").Array()
	if len(emoji) < 2 {
		t.Fatalf("the character is one token: %v", emoji)
	}
	for i, temperature := range []string{"", `,"temperature":0`} {
		body := askFor("/v1/chat/completions", 60+i, fmt.Sprintf(`,"max_tokens":5,"stream":true,"allowed_token_ids":[%d]%s`, emoji[0].Int(), temperature))
		sameAnswer(t, body, c.post("/v1/chat/completions", body), askEngine(t, truth, "/v1/chat/completions", body))
		if n := c.firstTokens("redrawn", "no_text"); n != float64(i+1) {
			t.Errorf("%v were drawn again", n)
		}
		p, d := requests(c.prefill, "/v1/chat/completions"), requests(c.decode, "/v1/chat/completions")
		drawn := gjson.Get(p[i].Body, "seed").Int()
		if same := gjson.Get(d[i].Body, "seed").Int(); drawn != same || (drawn == 0) != (temperature != "") {
			t.Errorf("prefill drew by the seed %d, decode by %d", drawn, same)
		}
	}
}

// What is predicted is what the client waits for: before a first token that prefill says no
// transfer, and behind it all of what decode takes. An answer whose client sees no token before
// the last, and a first token of decode, are predicted as before.
func TestFirstToken_IsPredictedWithoutTheTransfer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: takesFirst})
	early := 0
	for _, extra := range []string{`,"max_tokens":3,"stream":true`, `,"max_tokens":3`, `,"max_tokens":3,"stream":true,"seed":7`} {
		for words := 40; words < 76; words++ {
			got := c.post("/v1/completions", askFor("/v1/completions", words, extra))
			var attempt gjson.Result
			eventually(t, "the answer is measured", func() bool {
				attempt = gjson.Get(c.get("/debug/decisions/"+got.header.Get("X-Request-Id")).body, "attempts.0")
				return attempt.Get("measured.whole_ms").Exists()
			})
			chosen := attempt.Get("alternatives.#(chosen==true)")
			before := chosen.Get("ready_ms").Num + chosen.Get("queue_ms").Num + chosen.Get("prefill_ms").Num
			behind := chosen.Get("transfer_ms").Num + chosen.Get("room_ms").Num + chosen.Get("step_ms").Num
			first, gap := chosen.Get("first_token_ms").Num, chosen.Get("first_gap_ms").Num
			is := strings.HasPrefix(attempt.Get("first_token").String(), "first")
			isPredicted := gap > 0 // and not so of a prompt that is known to end with a block
			if strings.HasSuffix(extra, `"stream":true`) {
				if is && !isPredicted {
					t.Errorf("%d words: no gap behind prefill's token is predicted: %s", words, chosen.Raw)
				}
			} else if isPredicted {
				t.Errorf("%s: a gap behind prefill's token is predicted: %s", extra, chosen.Raw)
			}
			if isPredicted {
				early++
				before, behind = first-before, gap-behind
			} else {
				before, behind = first-before-behind, 0
			}
			if before > 0.01 || before < -0.01 || behind > 0.01 || behind < -0.01 {
				t.Errorf("%s: the parts of the first token do not add up: %s", extra, chosen.Raw)
			}
		}
	}
	if early < 30 {
		t.Errorf("%d first tokens were predicted from prefill", early)
	}
}

// slowLink is a link on which KV travels for so long, as the gateway believes too.
func slowLink(latency time.Duration, itl time.Duration) shape {
	return shape{
		prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) {
			takesFirst(cfg)
			cfg.TimeScale, cfg.LinkLatency = 1, latency
		},
		config: func(cfg *config) {
			continuing(cfg)
			cfg.pd.ITL.All, cfg.cost.PairsFirst = itl, true
			for i := range cfg.cost.links {
				cfg.cost.links[i].Latency = latency
			}
		},
	}
}

// Where the second token would come later than the objective between tokens allows, prefill's is held:
// the gap meets the objective although the transfer takes longer. Without an objective it comes at once.
func TestFirstToken_IsHeldForTheObjective(t *testing.T) {
	t.Parallel()
	const transfer = 2 * time.Second                                         // of which a busy machine may take a part
	for name, of := range map[string]struct{ itl, held, gap time.Duration }{ // at least
		"no objective":       {0, 0, transfer * 3 / 4},
		"one that it meets":  {2 * transfer, 0, transfer * 3 / 4},
		"one that it misses": {transfer / 2, transfer / 2, transfer / 8}, // held for half of it, and a little more
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, slowLink(transfer, of.itl))
			truth := startTestEngine(t, engine.RoleBoth, takesFirst)
			body := askFor("/v1/completions", 61, `,"max_tokens":3,"stream":true`)
			asked := time.Now()
			next := c.openStream(t.Context(), "/v1/completions", body)
			first := next()
			began := time.Now()
			second := next()
			gap, held := time.Since(began), began.Sub(asked)
			want := askEngine(t, truth, "/v1/completions", body).events
			for i, got := range []string{first, second} {
				if !reflect.DeepEqual(plain(t, got), plain(t, want[i])) {
					t.Errorf("event %d: %s, want %s", i, got, want[i])
				}
			}
			if n := c.firstTokens("first", "continues"); n != 1 || held < of.held || gap < of.gap {
				t.Errorf("prefill began %v answers; the first token came after %v, the second %v later, want at least %v and %v", n, held, gap, of.held, of.gap)
			}
		})
	}
}

// A client that leaves while the token is held leaves nothing behind, and is counted as one.
func TestFirstToken_AClientThatLeavesWhileItIsHeld(t *testing.T) {
	t.Parallel()
	c := newCluster(t, slowLink(time.Hour, 50*time.Millisecond))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/chat/completions", strings.NewReader(askFor("/v1/chat/completions", 61, `,"max_tokens":9,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := c.client.Do(req); err == nil { // the head comes with the token
			_ = resp.Body.Close()
			t.Error("its token was not held")
		}
	}()
	eventually(t, "the KV is on its way", func() bool { return c.decode[0].State().Waiting == 1 })
	leave()
	<-left
	eventually(t, "decode has nothing to do", func() bool { return c.decode[0].State().Waiting == 0 })
	c.checkIdle(1)
	eventually(t, "prefill holds nothing", func() bool { return c.prefill[0].State().HandoffsOpen == 0 })
	if n := c.metric("tandem_ttft_seconds_count"); n != 0 {
		t.Errorf("%v times to a first token were measured of a client that had none", n)
	}
}

// Where decode fails while the token is held the client gets that token, and the rest from another pair.
func TestFirstToken_DecodeFailsWhileItIsHeld(t *testing.T) {
	t.Parallel()
	held := slowLink(time.Minute, time.Millisecond)
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: takesFirst, config: held.config}) // it is quicker than believed
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	continued := func() float64 { return c.metric("tandem_continuations_total", `outcome="continued"`) }
	for i := 0; i < 12 || continued() < 3; i++ { // of equal servers the less known one goes first, by turns
		if i == 60 {
			t.Fatalf("only %v streams were continued", continued())
		}
		path := []string{"/v1/chat/completions", "/v1/completions"}[i%2]
		body := askFor(path, 60+i, `,"max_tokens":12,"stream":true,"stream_options":{"include_usage":true}`)
		for k, d := range c.decode {
			if d.ClearFaults(); k == i/4%2 {
				d.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "decode", Path: path, Count: 1})
			}
		}
		oneAnswer(t, c.post(path, body), askEngine(t, truth, path, body))
	}
	eventually(t, "nothing is in flight", func() bool { return c.metric("tandem_in_flight_requests") == 0 })
	for _, server := range c.node.fleet.Servers() {
		if own := server.InFlight(pools.Decode, time.Now()); own != (pools.InFlight{}) {
			t.Errorf("%s: a lease leaked: %+v", server.ID(), own)
		}
	}
}
