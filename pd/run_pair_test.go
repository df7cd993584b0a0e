package pd

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

var dialects = []*api.Dialect{api.Chat, api.Completions, api.Responses, api.Messages}

// more is what a body needs besides its prompt, in each API.
func more(d *api.Dialect, stream bool) string {
	limit := map[*api.Dialect]string{api.Chat: "max_tokens", api.Completions: "max_tokens", api.Responses: "max_output_tokens", api.Messages: "max_tokens"}[d]
	return fmt.Sprintf(`,"%s":12,"stream":%v`, limit, stream)
}

// A message that has to call a tool by name is served by decode alone: a prefill leg, cut to one token, would
// be refused for arguments that are no JSON. One that may call it is served by a pair.
func TestRun_AMessageThatHasToCallIsDecodedAlone(t *testing.T) {
	const tool = `,"tools":[{"name":"f","input_schema":{"type":"object","properties":{"x":{"type":"boolean"}}}}],"max_tokens":200,"tool_choice":`
	for choice, alone := range map[string]bool{`{"type":"tool","name":"f"}`: true, `{"type":"auto"}`: false} {
		for _, stream := range []bool{false, true} {
			f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
			got := f.served(f.asks(api.Messages, tool+choice+fmt.Sprintf(`,"stream":%v`, stream)))
			if (got.Prefill == "") != alone || got.Decode != f.server(f.decode[0]).ID() {
				t.Errorf("%s, streamed %v: served by %q and %q", choice, stream, got.Prefill, got.Decode)
			}
			if n := f.prefill[0].State().PrefillsDone; (n == 0) != alone {
				t.Errorf("%s: %d prefills", choice, n)
			}
		}
	}
}

// A call at which prefill fails with one token is decoded alone where disaggregation is enforced too: no pair
// could ever serve it, and the client would be told to try again for good.
func TestRun_ForcedCallsAreServedWhereDisaggregationIsEnforced(t *testing.T) {
	for d, tool := range map[*api.Dialect]string{
		api.Messages: `,"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"tool","name":"f"}`,
		api.Chat:     `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"required"`,
	} {
		t.Run(d.Name, func(t *testing.T) {
			f := newEngineFleet(t, fleetShape{prefill: 2, decode: 1,
				engine:       func(c *engine.Config) { c.ForcedToolPrefillFails = d == api.Chat },
				orchestrator: func(o *Orchestrator) { o.Binder.Config.EnforceDisaggregation = true },
			})
			forced := f.asks(d, tool+more(d, false))
			forced.ForcedTool = true
			if got := f.served(forced); got.Prefill != "" || got.Decode != f.server(f.decode[0]).ID() {
				t.Errorf("served by %q and %q", got.Prefill, got.Decode)
			}
			if got := f.served(f.asks(d, more(d, false))); got.Prefill == "" {
				t.Error("the next request, which a pair can serve, was decoded alone")
			}
			f.nothingIsLeft()
		})
	}
}

// A pair answers as one engine alone would; which servers served it, what it took and why it
// went there is known afterwards, and nothing is held any more.
func TestRun_APairAnswersAsOneEngineAlone(t *testing.T) {
	for _, d := range dialects {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", d.Name, stream), func(t *testing.T) {
				f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
				req := f.asks(d, more(d, stream))
				got := f.served(req)
				if want := reference(t, req); got.text != want || want == "" {
					t.Errorf("%q, want %q", got.text, want)
				}
				prefill, decode := f.server(f.prefill[0]), f.server(f.decode[0])
				if got.Prefill != prefill.ID() || got.Decode != decode.ID() || got.ComputedTokens != req.PromptTokens {
					t.Errorf("served by %q and %q, %d of %d tokens computed", got.Prefill, got.Decode, got.ComputedTokens, req.PromptTokens)
				}
				p, s := f.prefill[0].State(), f.decode[0].State()
				if p.PrefillsDone != 1 || p.HandoffsPulled != 1 || s.DecodesDone != 1 || s.Recomputed != 0 || s.AggregatedDone != 0 {
					t.Errorf("prefill %+v\ndecode %+v", p, s)
				}
				if want := []string{"wait", "locate", "choose", "prefill", "decode"}; !slices.Equal(f.steps(), want) {
					t.Errorf("its steps are %v, want %v", f.steps(), want)
				}
				chosen := f.attributes("choose")
				if chosen["tandem.prefill"].AsString() != prefill.ID() || chosen["tandem.decode"].AsString() != decode.ID() || chosen["tandem.ttft_predicted_seconds"].AsFloat64() <= 0 {
					t.Errorf("its trace says that it was bound to %v", chosen)
				}
				if located := f.attributes("locate"); located["tandem.prompt_tokens"].AsInt64() != int64(req.PromptTokens) {
					t.Errorf("its trace says of its prompt %v", located)
				}
				f.nothingIsLeft()
				f.wantMetrics(f.countsOf(stream, got))
				for _, what := range []string{"prompts", "streams"} {
					saved, lost := f.metric("tandem_disaggregation_saved_seconds_total", "what", what), f.metric("tandem_disaggregation_lost_seconds_total", "what", what)
					if saved <= 0 && lost <= 0 {
						t.Errorf("its pair saved %v s and lost %v s of %s", saved, lost, what)
					}
				}
				decision, found := f.Decisions.Find("r")
				if !found || decision.Outcome != "served" || decision.API != d.Name || len(decision.Choices) != 1 || decision.Choices[0].Chosen.Prefill != prefill.ID() || decision.Choices[0].Panic {
					t.Errorf("%v %+v", found, decision)
				}
				usage := got.Usage
				if stream {
					usage = got.Stream.Usage()
				}
				usage.Prompt = api.Count{Tokens: f.prefilledTokens(), Known: true}
				wantMeasured(t, &decision.Choices[0], stream, usage)
			})
		}
	}
}

// wantMeasured looks at what is remembered of a request of which no tokens were known and which
// a pair has served.
func wantMeasured(t *testing.T, c *decision.Choice, stream bool, usage api.Usage) {
	t.Helper()
	m := c.Measured
	if m.Prefill <= 0 || m.Whole < m.Prefill || m.Usage.Prompt != usage.Prompt || m.Usage.Output != usage.Output {
		t.Errorf("measured %+v", m)
	}
	if (m.FirstToken > 0) != stream || (m.Transfer > 0) != stream || stream && m.FirstToken < m.Prefill+m.Transfer {
		t.Errorf("measured %+v, streamed: %v", m, stream)
	}
	if want := (decision.Prompt{Unknown: tokens.Off}); c.Prompt != want {
		t.Errorf("known is %+v", c.Prompt)
	}
}

// countsOf is what one request that a pair has served leaves in the metrics.
func (f *engineFleet) countsOf(stream bool, got reply) map[string]float64 {
	usage := got.Usage
	want := map[string]float64{
		"tandem_wait_seconds{model=m}": 1, "tandem_prefill_seconds": 1, "tandem_handoff_gap_seconds": 1,
		"tandem_aggregated_requests_total": 0, "tandem_retries_total": 0, "tandem_handoffs_missing_total": 0, "tandem_silent_recomputes_total": 0,
		"tandem_prompt_mismatches_total": 0, "tandem_handoffs_stranded_total": 0, "tandem_handoffs_external_total": 0,
		"tandem_handoffs_retained_total": 0, "tandem_streams_broken_total": 0, "tandem_continuations_total": 0,
		"tandem_retry_budget_exhausted_total": 0, "tandem_queue_evaluations_total": 0,
		"tandem_tokens_unknown_total{model=m,reason=off}": 1,
	}
	if stream {
		usage = got.Stream.Usage()
		want["tandem_ttft_seconds{model=m}"] = 1
		want["tandem_decode_first_event_seconds"] = 1
		want["tandem_ttft_prediction_ratio{model=m}"] = 1
		want["tandem_transfer_seconds{model=m}"] = 1
		want["tandem_transfer_prediction_ratio{model=m}"] = 1
		want["tandem_itl_seconds"] = 11 // between twelve tokens: what closes the answer is none
	}
	want["tandem_output_prediction_ratio{model=m}"] = 0 // where the engine was not asked how many it were
	if usage.Output.Known {
		want["tandem_output_prediction_ratio{model=m}"] = 1
	}
	want["tandem_prompt_tokens_total{model=m}"] = float64(f.prefilledTokens())
	want["tandem_output_tokens_total{model=m}"] = 12
	return want
}

// A prompt of which one token is asked for needs no decode server: prefill's answer is all.
func TestRun_OneTokenIsPrefillsAnswer(t *testing.T) {
	for _, d := range dialects {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", d.Name, stream), func(t *testing.T) {
				f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
				req := f.asks(d, strings.Replace(more(d, stream), ":12", ":1", 1))
				got := f.served(req)
				if want := reference(t, req); got.text != want {
					t.Errorf("%q, want %q", got.text, want)
				}
				f.nothingIsLeft()
				s, p := f.decode[0].State(), f.prefill[0].State()
				whole := s.DecodesDone == 0 && s.AggregatedDone == 0
				if whole && (got.Prefill != f.server(f.prefill[0]).ID() || got.Decode != "") {
					t.Errorf("decode did nothing, and it was served by %q and %q", got.Prefill, got.Decode)
				}
				if !whole && got.Decode != f.server(f.decode[0]).ID() || p.HandoffsOpen != 0 {
					t.Errorf("served by %q and %q; %d hand-offs are open", got.Prefill, got.Decode, p.HandoffsOpen)
				}
				f.wantMetrics(map[string]float64{"tandem_prompt_tokens_total": float64(f.prefilledTokens()), "tandem_output_tokens_total": 1, "tandem_handoffs_stranded_total": 0})
			})
		}
	}
}

// prefilledTokens are those of the last prompt, as prefill reports them whether or not decode is asked to.
func (f *engineFleet) prefilledTokens() int {
	return int(f.attributes("prefill")["tandem.prompt_tokens"].AsInt64())
}

// What cannot be handed over runs on one decode server whole: several samples of a prompt, an
// API without a prefill phase, and everything where there is no prefill server.
func TestRun_DecodeAloneForWhatCannotBeHandedOver(t *testing.T) {
	for name, c := range map[string]struct {
		prefills int
		change   func(*Request)
		reason   string
	}{
		"several samples":   {1, func(r *Request) { r.Aggregated, r.Answers = true, 2 }, "aggregated"},
		"no prefill server": {0, func(*Request) {}, "no_prefill"},
	} {
		for _, stream := range []bool{false, true} {
			f := newEngineFleet(t, fleetShape{prefill: c.prefills, decode: 1})
			req := f.asks(api.Chat, more(api.Chat, stream))
			c.change(req)
			if req.Answers > 1 {
				req.Body = req.Body.With(api.Set("n", []byte("2")))
			}
			got := f.served(req)
			if got.Prefill != "" || got.Decode != f.server(f.decode[0]).ID() || f.decode[0].State().AggregatedDone != max(1, req.Answers) {
				t.Errorf("%s: served by %q and %q", name, got.Prefill, got.Decode)
			}
			f.nothingIsLeft()
			f.wantMetrics(map[string]float64{"tandem_aggregated_requests_total{reason=" + c.reason + "}": 1, "tandem_aggregated_requests_total": 1, "tandem_prefill_seconds": 0, "tandem_handoff_gap_seconds": 0})
		}
	}
}

// A prefill that says nothing of a hand-off has worked for nothing: decode computes the prompt,
// the answer is the same, and a server that always does so is left out for a while.
func TestRun_AMissingHandoffIsNoError(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
		f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultDropHandoff})
		req := f.asks(api.Chat, more(api.Chat, stream))
		if got, want := f.served(req), reference(t, req); got.text != want {
			t.Errorf("%q, want %q", got.text, want)
		}
		f.nothingIsLeft()
		f.wantMetrics(map[string]float64{"tandem_handoffs_missing_total": 1, "tandem_retries_total": 0, "tandem_handoffs_stranded_total": 0, "tandem_prefill_seconds": 1})
	}
}

// Prefill's work of which decode never hears, prompt after prompt, is no use: after some long
// prompts the server is left out. Short ones prove nothing.
func TestRun_APrefillThatNeverHandsOverIsLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		words string
		out   bool
	}{"long prompts": {strings.Repeat("river bridge ", 200), true}, "short prompts": {longPrompt, false}} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
		f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultDropHandoff})
		for range 8 {
			f.served(requestOf(t, api.Completions, `{"model":"m","max_tokens":2,"prompt":"`+c.words+`"}`))
		}
		done := f.prefill[0].State().PrefillsDone
		if out := done < 8; out != c.out || done < 3 {
			t.Errorf("%s: %d of 8 prompts were computed on a server that hands nothing over", name, done)
		}
	}
}

// A hand-off that decode cannot use costs no answer: decode computes the prompt, and that is
// counted.
func TestRun_AHandoffThatIsWrongIsRecomputedAndCounted(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
		f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultWrongHandoff})
		for _, e := range f.decode {
			f.server(e).RecordCachedTokens() // as after the first answers
		}
		req := f.asks(api.Chat, more(api.Chat, stream)+`,"stream_options":{"include_usage":true}`)
		if !stream {
			req = f.asks(api.Chat, more(api.Chat, stream))
		}
		if got, want := f.served(req), reference(t, req); got.text != want {
			t.Errorf("%q, want %q", got.text, want)
		}
		f.nothingIsLeft()
		if n := f.decode[0].State().Recomputed; n != 1 {
			t.Fatalf("decode computed %d prompts again", n)
		}
		f.wantMetrics(map[string]float64{"tandem_silent_recomputes_total": 1, "tandem_retries_total": 0})
	}
}

// Legs go to the engine with what is the gateway's to say, and nothing of the client's twice.
func TestRun_LegsCarryTheRequestsHeaders(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	req := f.asks(api.Chat, more(api.Chat, false))
	var legs []*http.Request
	through := f.Transport
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		legs = append(legs, r.Clone(r.Context()))
		return through.RoundTrip(r)
	})
	req.Header.Set("Authorization", "Bearer k")
	f.served(req)
	if len(legs) != 2 {
		t.Fatalf("%d legs", len(legs))
	}
	for _, leg := range legs {
		h := leg.Header
		if h.Get("Authorization") != "Bearer k" || h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "tandem" || h.Get("X-Request-Id") == "" || h.Get("Traceparent") == "" {
			t.Errorf("%v", h)
		}
		if leg.GetBody != nil || leg.ContentLength <= 0 {
			t.Error("net/http might send it again by itself")
		}
	}
	if a, b := legs[0].Header.Get("X-Request-Id"), legs[1].Header.Get("X-Request-Id"); a == "r" || b == "r" {
		t.Errorf("the client's id went to the engines: %q, %q", a, b)
	}
	if len(req.Header) != 1 {
		t.Errorf("the request's own headers have changed: %v", req.Header)
	}
}

// The usage that a client sees is that of one engine that did all, whichever leg counted it.
func TestRun_UsageIsThatOfOneEngine(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	one := f.served(f.asks(api.Chat, more(api.Chat, false)))
	two := f.served(f.asks(api.Chat, more(api.Chat, true)+`,"stream_options":{"include_usage":true}`))
	usage := gjson.GetBytes(one.Body, "usage")
	last := gjson.Get(two.events[len(two.events)-2], "usage")
	if usage.Get("prompt_tokens").Int() == 0 || usage.Get("completion_tokens").Int() != 12 || last.Get("prompt_tokens").Int() != usage.Get("prompt_tokens").Int() || last.Get("completion_tokens").Int() != 12 {
		t.Errorf("%s\n%s", usage, last)
	}
	if gjson.Get(string(one.Body), "kv_transfer_params").Exists() {
		t.Errorf("the client sees the engines' hand-off: %s", one.Body)
	}
	// The second prompt was in prefill's cache, which is what is counted and shown.
	cachedTokens := last.Get("prompt_tokens_details.cached_tokens").Int()
	if cachedTokens == 0 || f.metric("tandem_cached_prompt_tokens_total") != float64(cachedTokens) {
		t.Errorf("%d tokens were cached, counted are %v", cachedTokens, f.metric("tandem_cached_prompt_tokens_total"))
	}
}

// An engine that reports cached tokens is known to do so from its first answer on: only then
// does their absence say that a hand-off was not used.
func TestRun_AnEngineThatReportsCachedTokensIsKnownTo(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
		body := more(api.Chat, stream)
		if stream {
			body += `,"stream_options":{"include_usage":true}`
		}
		decode := f.server(f.decode[0])
		if decode.ReportsCachedTokens() {
			t.Error("known before its first answer")
		}
		if f.served(f.asks(api.Chat, body)); !decode.ReportsCachedTokens() {
			t.Errorf("stream %v: not known after an answer that does", stream)
		}
	}
}

// Hidden usage was asked for by the gateway: the client does not see the event, and the
// gateway counts by it.
func TestRun_HiddenUsageIsCountedAndNotShown(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	req := f.asks(api.Chat, more(api.Chat, true)+`,"stream_options":{"include_usage":true}`)
	req.HideUsage = true
	got := f.served(req)
	for _, event := range got.events {
		if choices := gjson.Get(event, "choices"); choices.IsArray() && len(choices.Array()) == 0 {
			t.Errorf("the client sees %s", event)
		}
	}
	if u := got.Stream.Usage(); !u.Prompt.Known || u.Output.Tokens != 12 || got.events[len(got.events)-1] != "[DONE]" {
		t.Errorf("%+v is known, the last event is %s", u, got.events[len(got.events)-1])
	}
}

// An engine's predicted work is on its server while the leg is under way, by role.
func TestRun_ServersCarryWhatIsUnderWay(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	prefill, decode := f.server(f.prefill[0]), f.server(f.decode[0])
	answer, err := f.Run(t.Context(), f.asks(api.Chat, more(api.Chat, true)))
	if err != nil {
		t.Fatal(err)
	}
	if p, d := prefill.InFlight(pools.Prefill, time.Now()), decode.InFlight(pools.Decode, time.Now()); p.Requests != 0 || d.Requests != 1 || d.Tokens == 0 {
		t.Errorf("the stream has begun: %+v on prefill, %+v on decode", p, d)
	}
	if _, inFlight := f.Queue.Len(); inFlight != 1 {
		t.Errorf("%d are in flight", inFlight)
	}
	answer.Stream.Close()
	f.nothingIsLeft()
}

// What an engine counts in a prompt, and in an answer that came to its end, is what the next of
// the kind are expected to have. Where it does not count, or several samples count theirs,
// nothing is learned.
func TestRun_LengthsAreLearnedOfWhatEnginesCount(t *testing.T) {
	for name, c := range map[string]struct {
		more            string
		samples         int
		prompts, output float64
	}{
		"a whole answer":          {more(api.Chat, false), 0, 1, 1},
		"a stream with its usage": {more(api.Chat, true) + `,"stream_options":{"include_usage":true}`, 0, 1, 1},
		"a stream without":        {more(api.Chat, true), 0, 0, 0},
		"two samples":             {more(api.Chat, false) + `,"n":2`, 2, 0, 1},
	} {
		f := newEngineFleet(t, fleetShape{decode: 1, orchestrator: func(o *Orchestrator) { o.Binder.Prompts = predict.NewPrompts() }})
		req := f.asks(api.Chat, c.more)
		req.Answers, req.Aggregated = c.samples, c.samples > 0
		req.Size = predict.Prompt{Model: testModel, API: api.Chat.Name, Rough: 1000}
		req.MaxOutput, req.MaxField = 0, "" // the bound of its body is not known to the gateway
		f.served(req)
		f.nothingIsLeft()
		f.wantMetrics(map[string]float64{"tandem_prompt_prediction_ratio": c.prompts, "tandem_output_prediction_ratio": c.output})
		if got := f.Binder.Prompts.Expect(req.Size); (got != 1000) != (c.prompts > 0) {
			t.Errorf("%s: a prompt of roughly 1000 tokens is expected to have %d", name, got)
		}
		expected := f.Binder.Outputs.Expect(predict.Answer{Model: testModel, Tokens: predict.UnknownOutput})
		if (expected < predict.UnknownOutput) != (c.output > 0) {
			t.Errorf("%s: the next answer is expected to have %d tokens", name, expected)
		}
	}
}

// A prompt whose pieces decode has pulled before teaches nothing: what is left is a part of its KV, and would
// show a link that is many times as fast. It takes the link all the same.
func TestTransferSample_PiecesTeachNothing(t *testing.T) {
	for _, pieces := range []int{0, 1} {
		f := newTestFleet(t, 1, testPrompt(160))
		st := f.arrives(testPrompt(6400), time.Now())
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill == nil {
			t.Fatalf("%+v, %v", b, err)
		}
		tr := st.transfer(b)
		b.handoff, b.cut.done = tr.Handoff(), pieces
		b.handoff.RecordPrefill(tr, answered(t, `{"usage":{"prompt_tokens":6400},"kv_transfer_params":{"remote_block_ids":[[1]]}}`), time.Now())
		if sample := f.Binder.beginTransfer(st, b, time.Now()); (sample.links != nil) != (pieces == 0) || sample.transfer == nil || sample.bytes <= 0 {
			t.Errorf("%d pieces: a sample of %.0f bytes, of a link: %v", pieces, sample.bytes, sample.links != nil)
		}
		b.release()
	}
}

// Where decode's KV is taken a request waits in its queue: no transfer is taken to be under way, since others would be
// kept from a link on which nothing moves, and the time says nothing of the link. What is still to come takes no room.
func TestTransferSample_WhoWaitsForRoomTakesNoLink(t *testing.T) {
	for _, c := range []struct {
		why             string
		tokens, arrived int // of a request before it, and those of it that have come
		used            float64
		waits           bool
	}{
		{"there is room", 1000, 1000, 0.9, false},
		{"only what answers grow into is left", 1000, 1000, 0.96, true},
		{"all is taken", 20_000, 20_000, 0.9, true},
		{"what is to take it is still to come", 20_000, 0, 0.9, false},
	} {
		f := newTestFleet(t, 1, testPrompt(160))
		st := f.arrives(testPrompt(6400), time.Now())
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill == nil {
			t.Fatalf("%+v, %v", b, err)
		}
		decode := b.decode.Server()
		before, err := decode.Claim(pools.Decode, curve.Work{Tokens: c.tokens, Prompt: c.tokens}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		toCome := f.Binder.Links.Expect(linkEndOf(b.prefill.Server()), linkEndOf(decode), 1e9, c.tokens-c.arrived, time.Second, time.Now())
		decode.ReportLoad(load.Load{Engine: "vllm", Running: known(2), Waiting: known(0), KVUsed: known(c.used), KVTokens: known(20_000), At: time.Now()})
		tr := st.transfer(b)
		b.handoff = tr.Handoff()
		b.handoff.RecordPrefill(tr, answered(t, `{"usage":{"prompt_tokens":6400},"kv_transfer_params":{"remote_block_ids":[[1]]}}`), time.Now())
		if sample := f.Binder.beginTransfer(st, b, time.Now()); (sample.transfer == nil) != c.waits || (sample.links == nil) != c.waits {
			t.Errorf("%s: a transfer %v, of a link %v", c.why, sample.transfer, sample.links)
		}
		toCome.End()
		before.Release()
		b.release()
	}
}

// The time from decode's dispatch to its first event, or to its whole answer, teaches the link
// between the two servers; not while decode computes prompts as well.
func TestTransferSample_TeachesTheLink(t *testing.T) {
	for _, busy := range []bool{false, true} {
		for _, whole := range []bool{false, true} {
			f := newTestFleet(t, 1, testPrompt(160))
			now := time.Now()
			st := f.arrives(testPrompt(6400), now)
			b, err := f.Binder.bindNow(&st.bind)
			if err != nil || b.prefill == nil {
				t.Fatalf("%+v, %v", b, err)
			}
			tr := st.transfer(b)
			b.handoff = tr.Handoff()
			b.handoff.RecordPrefill(tr, answered(t, `{"usage":{"prompt_tokens":6400},"kv_transfer_params":{"remote_block_ids":[[1]]}}`), now)
			sample := f.Binder.beginTransfer(st, b, now)
			if busy {
				lease, err := b.decode.Server().Claim(pools.Decode, curve.Work{}, false, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				lease.BeginLocalPrefill(curve.Work{Tokens: 1000, Estimate: time.Second}, time.Now())
				t.Cleanup(lease.Release)
			}
			believed := func(at time.Time) float64 {
				return f.Binder.Links.Table([]cost.Candidate{{ID: sample.from.ID, Topology: sample.from.Topology}}, []cost.Candidate{{ID: sample.to.ID, Topology: sample.to.Topology}}, at).After(0, order.Pair{}, 1, sample.bytes)
			}
			before := believed(now)
			for range 10 { // the first of a pair may be what connecting takes
				if whole {
					sample.whole(5*time.Second, api.Count{Known: true, Tokens: 2}, now)
				} else {
					sample.first(5*time.Second, now)
				}
			}
			sample.end()
			after := believed(now.Add(time.Second))
			if (after > before) == busy {
				t.Errorf("whole %v, decode busy %v: the link was believed to take %v s, and after 5 s %v s", whole, busy, before, after)
			}
			b.release()
		}
	}
}

// What decode may have needed to read a long prompt is not held against the link over which little
// of it moved; what is more than that is.
func TestTransferSample_ReadingALongPromptIsNoTransfer(t *testing.T) {
	for _, c := range []struct {
		took    time.Duration
		teaches bool
	}{{5 * time.Millisecond, false}, {35 * time.Millisecond, false}, {200 * time.Millisecond, true}} {
		f := newTestFleet(t, 1, testPrompt(160))
		now := time.Now()
		st := f.arrives(testPrompt(160), now)
		st.req.PromptTokens = 40_000
		b, err := f.Binder.bindNow(&st.bind)
		if err != nil || b.prefill == nil {
			t.Fatalf("%+v, %v", b, err)
		}
		tr := st.transfer(b)
		b.handoff, b.cachedTokens = tr.Handoff(), 39_840
		b.handoff.RecordPrefill(tr, answered(t, `{"usage":{"prompt_tokens":40000},"kv_transfer_params":{"remote_block_ids":[[1]]}}`), now)
		believed := func(at time.Time) float64 {
			from, to := candidateOf(b.handoff.From, now), candidateOf(b.decode.Server(), now)
			return f.Binder.Links.Table([]cost.Candidate{from}, []cost.Candidate{to}, at).After(0, order.Pair{}, 1, 5e6)
		}
		before := believed(now)
		for range 10 { // the first of a pair may be what connecting takes
			sample := f.Binder.beginTransfer(st, b, now)
			sample.first(c.took, now)
		}
		if after := believed(now.Add(time.Second)); (after > before) != c.teaches {
			t.Errorf("after transfers of 5 MB in %v it is believed to take %v s, before %v s", c.took, after, before)
		}
		b.release()
	}
}

// Where engines schedule by priority both legs carry the same key, and else none.
func TestRun_BothLegsCarryTheirPriority(t *testing.T) {
	for _, by := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, orchestrator: func(o *Orchestrator) { o.Config.EnginePriority = by }})
		f.served(f.asks(api.Chat, more(api.Chat, false)))
		var keys []string
		for _, e := range []*engine.Engine{f.prefill[0], f.decode[0]} {
			for _, r := range e.State().Requests {
				if r.Path == api.Chat.Path {
					keys = append(keys, gjson.Get(r.Body, "priority").Raw)
				}
			}
		}
		if len(keys) != 2 || keys[0] != keys[1] || (keys[0] != "") != by {
			t.Errorf("by priority %v: the legs carry %q", by, keys)
		}
	}
}

// One hand-off in between shows that a prefill server hands over: what was missed before it counts
// no more.
func TestRun_AHandoffInBetweenClearsWhatWasMissed(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
	serve := func(n int) {
		for range n {
			f.served(requestOf(t, api.Completions, `{"model":"m","max_tokens":2,"prompt":"`+strings.Repeat("river bridge ", 200)+`"}`))
		}
	}
	for range 3 {
		f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultDropHandoff})
		serve(3)
		f.prefill[0].ClearFaults()
		serve(1)
	}
	if done := f.prefill[0].State().PrefillsDone; done != 12 {
		t.Errorf("%d of 12 prompts were computed there", done)
	}
}

// Where both engines can, prefill says the first token of a stream, at once or held for an objective
// between tokens, which no gap would meet here: then it is there when decode's is, and the answer is the
// same.
func TestRun_PrefillSaysTheFirstToken(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.Version = "0.32.0" }})
	f.identified()
	f.Binder.Cost.PairsFirst = true // however slow the prefill server has shown itself to be
	handOff := f.Binder.Cost.HandOff
	for name, itl := range map[string]time.Duration{"no objective": 0, "one that no gap meets": time.Nanosecond, "one that each meets": time.Hour} {
		req := requestOf(t, api.Completions, `{"model":"m","max_tokens":5,"stream":true,"prompt":"`+strings.Repeat("river bridge ", 30)+`"}`)
		req.ITL = itl
		f.Binder.Cost.HandOff = handOff
		if itl == time.Nanosecond { // what is forecast is longer than what decode takes on a busy machine
			f.Binder.Cost.HandOff = time.Minute
		}
		before, believed := f.metric("tandem_first_tokens_total", "use", "first"), f.Binder.firstGap.Hold(time.Hour, 0)
		if got, want := f.served(req), reference(t, req); got.text != want {
			t.Errorf("%s: %q, want %q", name, got.text, want)
		}
		switch learned := f.Binder.firstGap.Hold(time.Hour, 0) - believed; {
		case itl == 0 && learned != 0, itl > 0 && learned == 0, itl == time.Hour && learned > 0:
			t.Errorf("%s: the gap behind its first token changed what is forecast of an hour by %v", name, learned)
		}
		d, _ := f.Decisions.Find("r")
		if n := f.metric("tandem_first_tokens_total", "use", "first") - before; n != 1 {
			t.Errorf("%s: %v times; the last was %q", name, n, d.Choices[0].FirstToken)
		}
		c, atOnce := &d.Choices[0], itl != time.Nanosecond
		if held := c.Chosen.Terms.Held > 0; held == atOnce || c.Chosen.Terms.TTFT()+c.Chosen.Terms.FirstGap() != c.Chosen.Terms.FirstStep() {
			t.Errorf("%s: predicted is %+v", name, c.Chosen.Terms)
		}
		if m := &c.Measured; m.FirstToken <= 0 || !atOnce && m.FirstToken < m.Prefill+m.Transfer {
			t.Errorf("%s: measured is %+v", name, m)
		}
	}
}
