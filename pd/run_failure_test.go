package pd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// afresh makes each leg go out on a connection of its own, and none on one of a probe: an engine that ends may have
// read what is on that.
func afresh(o *Orchestrator) { o.Transport.(*enginehttp.Transport).DisableKeepAlives = true }

// quickly makes hanging legs end within a test. Legs that do not hang must be done by then, also where others use
// the machine.
func quickly(o *Orchestrator) {
	const limit = 2 * time.Second
	o.Config.PrefillTimeout, o.Config.FirstEventTimeout, o.Config.IdleTimeout, o.Config.AnswerTimeout = limit, limit, limit, limit
}

// Where most of a fleet goes at once a request finds a server that is left, whatever is left of the retries: a refused
// connection is no work for an engine.
func TestRun_RefusedConnectionsCostNoRetry(t *testing.T) {
	for _, stream := range []bool{true, false} {
		f := newEngineFleet(t, fleetShape{prefill: 6, decode: 6, orchestrator: func(o *Orchestrator) {
			afresh(o)
			o.Config.MaxRetries, o.Budget = 0, retry.NewBudget(0, 0)
		}})
		for i := range 5 {
			f.prefill[i].SetFault(engine.Fault{Kind: engine.FaultRefuse})
			f.decode[i].SetFault(engine.Fault{Kind: engine.FaultRefuse})
		}
		req := f.asks(api.Chat, more(api.Chat, stream))
		want := reference(t, req)
		for range 40 { // until several are asked that are gone
			got := f.served(req)
			if got.text != want {
				t.Fatalf("%q, want %q", got.text, want)
			}
			if got.Prefill == "" {
				t.Fatalf("one prefill server is left, and decode computed a prompt alone")
			}
			if f.metric("tandem_retries_total") > 3 {
				break
			}
		}
		f.nothingIsLeft()
		if n := f.metric("tandem_retries_total", "reason", string(Unsent)); n != f.metric("tandem_retries_total") || n == 0 || n > 10 {
			t.Errorf("%v of %v retries for refused connections", n, f.metric("tandem_retries_total"))
		}
		if n := f.metric("tandem_retry_budget_exhausted_total"); n != 0 {
			t.Errorf("the budget was asked for %v retries", n)
		}
	}
}

// With another server of its role, no fault of one before the first content costs the client
// anything: the answer is the right one, the failure is counted as what it was, and nothing
// is held afterwards.
func TestRun_AnotherServerTakesOver(t *testing.T) {
	for i, c := range []struct {
		fault  engine.Fault
		reason Kind
		up     bool // the server is, afterwards
	}{
		{engine.Fault{Kind: engine.FaultRefuse}, Unsent, false},
		{engine.Fault{Kind: engine.FaultRefuse, Path: "/v1/chat/completions"}, Broken, true}, // reads, then resets
		{engine.Fault{Kind: engine.FaultStatus, Status: 500}, Broken, true},
		{engine.Fault{Kind: engine.FaultStatus, Status: 502}, Broken, true},
		{engine.Fault{Kind: engine.FaultStatus, Status: 503}, Busy, true},
		{engine.Fault{Kind: engine.FaultStatus, Status: 429}, Busy, true},
		{engine.Fault{Kind: engine.FaultStatus, Status: 408}, Busy, true},
		{engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 1}, Timeout, true},
		{engine.Fault{Kind: engine.FaultHangAfterHeaders, Count: 1}, Timeout, true},
		{engine.Fault{Kind: engine.FaultEmptyStream}, Broken, true},
		{engine.Fault{Kind: engine.FaultGarbageSSE}, Broken, true},
		{engine.Fault{Kind: engine.FaultDieAfterTokens}, Broken, true},
		{engine.Fault{Kind: engine.FaultErrorAfterTokens}, Broken, true},
	} {
		for k, role := range []pools.Role{pools.Prefill, pools.Decode} {
			stream := (i+k)%2 == 0
			t.Run(fmt.Sprintf("%s/%s%d%s/stream=%v", role, c.fault.Kind, c.fault.Status, c.fault.Path, stream), func(t *testing.T) {
				t.Parallel()
				f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2, orchestrator: func(o *Orchestrator) {
					afresh(o)
					if c.reason == Timeout { // else no limit, since on a busy machine all are slow
						quickly(o)
					}
				}})
				engines, leg := f.prefill, PrefillLeg
				if role == pools.Decode {
					engines, leg = f.decode, DecodeLeg
				}
				req := f.asks(api.Chat, more(api.Chat, stream))
				want := reference(t, req)
				bad := engines[0]
				bad.SetFault(c.fault)
				for range 40 { // until the bad one is asked
					if got := f.served(req); got.text != want {
						t.Fatalf("%q, want %q", got.text, want)
					}
					if f.metric("tandem_retries_total") > 0 {
						break
					}
				}
				bad.ClearFaults()
				f.nothingIsLeft()
				f.wantMetrics(map[string]float64{
					"tandem_retries_total": 1, fmt.Sprintf("tandem_retries_total{leg=%s,reason=%s}", leg, c.reason): 1,
					"tandem_retry_budget_exhausted_total": 0, "tandem_streams_broken_total": 0, "tandem_continuations_total": 0,
				})
				if up := f.server(bad).Health().Up; up != c.up {
					t.Errorf("the server is up: %v, want %v", up, c.up)
				}
				decision, _ := f.Decisions.Find("r")
				if n := len(decision.Choices); n != 2 || decision.Choices[0].Outcome == "" || decision.Choices[1].Outcome != "" || decision.Outcome != "served" {
					t.Errorf("%d choices: %+v", n, decision)
				}
			})
		}
	}
}

// Usage beyond what the model's context allows is not believed: it is charged to nobody, and no other answer is expected to
// be so long.
func TestRun_UsageBeyondTheContextIsNotBelieved(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":2000000000,"completion_tokens":2000000000,"total_tokens":4000000000}`
	for stream, body := range map[bool]string{
		false: `{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],` + usage + `}`,
		true:  `data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}` + "\n\n" + `data: {"choices":[],` + usage + "}\n\ndata: [DONE]\n\n",
	} {
		f := newEngineFleet(t, fleetShape{decode: 1})
		f.eventually("the context is known", func() bool { return f.Fleet.LongestContext(testModel) > 0 })
		expected := func() int {
			return f.Binder.Outputs.Expect(predict.Answer{Model: testModel, Tokens: predict.UnknownOutput})
		}
		before := expected()
		f.answersFirst(http.StatusOK, http.Header{"Content-Type": {map[bool]string{true: "text/event-stream", false: "application/json"}[stream]}}, body)
		got := f.served(f.asks(api.Chat, map[bool]string{true: `,"stream":true,"stream_options":{"include_usage":true}`}[stream]))
		counted := got.Usage
		if stream {
			counted = got.Stream.Usage()
		}
		if counted != (api.Usage{}) || expected() > before {
			t.Errorf("streamed %v: it counts %+v, and %d tokens are expected", stream, counted, expected())
		}
		f.nothingIsLeft()
	}
}

// A request at which each engine fails says nothing of the servers on which it is tried again: a client that sent such
// requests would have half of the fleet ejected that serves all others.
func TestRun_ARequestAtWhichEachEngineFailsEjectsNoServerThatItIsTriedOnAgain(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 4})
	var legs []string // of one request, by server
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		legs = append(legs, r.URL.Host)
		return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
	})
	consecutive := f.Fleet.Config().Breaker.Consecutive
	first, again, most := make(map[string]int), make(map[string]int), 0
	for n := 0; most < consecutive; n++ {
		if n == 2*consecutive { // two more legs each, on four servers: one has had so many by then
			t.Fatalf("%v are asked first, %v then", first, again)
		}
		legs = nil
		var failed *LegError
		if _, err := f.Run(t.Context(), f.asks(api.Chat, "")); !errors.As(err, &failed) || failed.Status != http.StatusInternalServerError {
			t.Fatalf("it ends with %v", err)
		}
		first[legs[0]]++
		for _, server := range legs[1:] {
			again[server]++
			most = max(most, again[server])
		}
	}
	for server, n := range again {
		if ejected := sumOf(t, f.Fleet.Collector(), "tandem_breaker_ejections_total", "server", server); first[server] < consecutive && ejected > 0 {
			t.Errorf("%s was ejected %v times by %d requests, and %d that had failed elsewhere", server, ejected, first[server], n)
		}
	}
	f.nothingIsLeft()
}

// Requests at which each engine fails leave retries for those whose servers die.
func TestRun_RequestsAtWhichEachEngineFailsLeaveRetries(t *testing.T) {
	f := newEngineFleet(t, fleetShape{decode: 4})
	f.Budget = retry.NewBudget(0, 6)
	engines := f.Transport
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{}`)), Request: r}, nil
	})
	for range 2 { // by a third one servers are ejected
		var failed *LegError
		if _, err := f.Run(t.Context(), f.asks(api.Chat, "")); !errors.As(err, &failed) || failed.Status != http.StatusInternalServerError {
			t.Fatalf("it ends with %v", err)
		}
	}
	f.wantMetrics(map[string]float64{"tandem_retry_budget_exhausted_total": 1})
	cut := false
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if !cut {
			cut = true
			return nil, io.ErrUnexpectedEOF
		}
		return engines.RoundTrip(r)
	})
	if _, err := f.Run(t.Context(), f.asks(api.Chat, "")); err != nil || !cut {
		t.Errorf("a request whose server has gone ends with %v", err)
	}
	f.nothingIsLeft()
}

// answersFirst has the first leg answered so, whatever its server is, which is what it points to then. The engines answer
// the others.
func (f *engineFleet) answersFirst(status int, header http.Header, body string) (server *string) {
	through, first := f.Transport, ""
	f.Transport = sends(func(r *http.Request) (*http.Response, error) {
		if first != "" {
			return through.RoundTrip(r)
		}
		first = r.URL.Host
		return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})
	return &first
}

// An engine's failure that comes with status 200, and what is no answer, count as failures of the server, and another
// one answers; that the request is at fault the client is told.
func TestRun_AFailureWithinAnAnswerIsNone(t *testing.T) {
	for body, want := range map[string]Kind{
		`{"object":"error","message":"EngineCore at node-7.internal","code":500}`:                   Broken,
		`{"error":{"message":"try later","code":503}}`:                                              Busy,
		`{"choices":[{"index":0,"message":{"content":"EngineDeadError"},"finish_reason":"abort"}]}`: Broken,
		`{}`: Broken, `[]`: Broken, `nothing`: Broken,
		`{"error":{"message":"the prompt is too long","code":400}}`: Refused,
	} {
		f := newEngineFleet(t, fleetShape{decode: 2})
		f.answersFirst(http.StatusOK, http.Header{}, body)
		req := f.asks(api.Chat, more(api.Chat, false))
		if want == Refused {
			_, err := f.Run(t.Context(), req)
			var refused *LegError
			if !errors.As(err, &refused) || refused.Kind != Refused || string(refused.Body) != body {
				t.Errorf("%s: %v", body, err)
			}
			continue
		}
		if got := f.served(req); got.text != reference(t, req) {
			t.Errorf("%s: the client has %q", body, got.text)
		}
		f.wantMetrics(map[string]float64{"tandem_retries_total": 1, fmt.Sprintf("tandem_retries_total{leg=%s,reason=%s}", AggregatedLeg, want): 1})
		for _, s := range f.Fleet.Servers() {
			if !s.Health().Up {
				t.Errorf("%s: %s is down: %s", body, s.ID(), s.Health().Reason)
			}
		}
		f.nothingIsLeft()
	}
}

// A server that says that it is busy gets no more requests while it asked for that, at most
// ten seconds; one that does not say, for a second.
func TestRun_ABusyServerIsLeftAlone(t *testing.T) {
	for after, want := range map[string]time.Duration{"": time.Second, "3": 3 * time.Second, "600": 10 * time.Second, "-1": time.Second, "soon": time.Second} {
		f := newEngineFleet(t, fleetShape{decode: 2})
		bad := f.answersFirst(http.StatusServiceUnavailable, http.Header{"Retry-After": {after}}, "")
		before := time.Now()
		f.served(f.asks(api.Chat, more(api.Chat, false)))
		for at, busy := range map[time.Time]bool{before.Add(want - time.Millisecond): true, time.Now().Add(want): false} {
			for _, c := range f.Binder.takeSnapshot(testModel, testModel, at).candidates.Decode {
				if c.Excluded != (busy && c.ID == *bad) {
					t.Errorf("Retry-After %q: %v later %s is left alone: %v", after, at.Sub(before), c.ID, c.Excluded)
				}
			}
		}
		f.nothingIsLeft()
	}
}

// What an engine says of the request is the client's to hear: as the engine said it, from the
// first that was asked, with no server held guilty.
func TestRun_TheRequestsFaultIsTheEnginesAnswer(t *testing.T) {
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		for _, status := range []int{400, 401, 403, 404, 413, 422} {
			for _, stream := range []bool{false, true} {
				f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2})
				engines := f.prefill
				if role == pools.Decode {
					engines = f.decode
				}
				for _, e := range engines {
					e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: status})
				}
				_, err := f.run(t.Context(), f.asks(api.Chat, more(api.Chat, stream)))
				var failed *LegError
				if !errors.As(err, &failed) || failed.Kind != Refused || failed.Status != status || !strings.Contains(string(failed.Body), "error") {
					t.Errorf("%s, %d: %v", role, status, err)
				}
				f.nothingIsLeft()
				f.wantMetrics(map[string]float64{"tandem_retries_total": 0})
				asked := 0
				for _, e := range engines {
					asked += len(e.State().Requests)
					if s := f.server(e); !s.Health().Up || s.State() != pools.Alive {
						t.Errorf("%s, %d: %s is %v", role, status, s.ID(), s.State())
					}
				}
				if asked != 1 {
					t.Errorf("%s, %d: %d servers were asked", role, status, asked)
				}
				if d, _ := f.Decisions.Find("r"); d.Outcome != failed.Error() {
					t.Errorf("remembered is %q", d.Outcome)
				}
			}
		}
	}
}

// Where all servers of a role fail, the client is told of the last failure, after as many
// tries as are allowed, and nothing is held.
func TestRun_WhereAllFailTheLastFailureIsTold(t *testing.T) {
	for _, stream := range []bool{false, true} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 2})
		for _, e := range f.decode {
			e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502})
		}
		_, err := f.run(t.Context(), f.asks(api.Chat, more(api.Chat, stream)))
		var failed *LegError
		if !errors.As(err, &failed) || failed.Status != 502 || failed.Kind != Broken {
			t.Errorf("%v", err)
		}
		f.nothingIsLeft()
		for _, e := range f.decode {
			legs := map[string]int{} // with a hand-off, and alone
			for _, r := range e.State().Requests {
				if !strings.Contains(r.RequestID, "canary") {
					legs[r.RequestID]++
				}
			}
			if n := len(legs); n == 0 || n > 2 {
				t.Errorf("one server was asked for %d legs: %v", n, legs)
			}
		}
	}
}

// A hand-off that its decode server surely never saw is used by the next one, and prefill is
// not asked again. One that it saw and refused is not: it is counted, since prefill holds its
// blocks until their lease ends.
func TestRun_AHandoffThatNobodySawGoesToTheNextDecode(t *testing.T) {
	for _, c := range []struct {
		fault    engine.Fault
		stranded int
	}{{engine.Fault{Kind: engine.FaultRefuse}, 0}, {engine.Fault{Kind: engine.FaultStatus, Status: 503}, 1}, {engine.Fault{Kind: engine.FaultStatus, Status: 429}, 1}} {
		for _, stream := range []bool{false, true} {
			f := newEngineFleet(t, fleetShape{prefill: 1, decode: 2, orchestrator: afresh})
			req := f.asks(api.Chat, more(api.Chat, stream))
			want := reference(t, req)
			f.decode[0].SetFault(c.fault)
			tries := 0
			for f.metric("tandem_retries_total") == 0 && tries < 40 {
				tries++
				if got := f.served(req); got.text != want || got.Prefill == "" {
					t.Fatalf("%s %d, stream %v, try %d: %q by %q and %q, want %q by a pair, %s", c.fault.Kind, c.fault.Status, stream, tries, got.text, got.Prefill, got.Decode, want, f.reasons())
				}
			}
			f.decode[0].ClearFaults()
			f.nothingIsLeft()
			p := f.prefill[0].State()
			if p.PrefillsDone != tries+c.stranded || p.HandoffsPulled != tries || p.HandoffsOpen != c.stranded {
				t.Errorf("%s: of %d requests %d prefills were done, %d pulled, %d are open", c.fault.Kind, tries, p.PrefillsDone, p.HandoffsPulled, p.HandoffsOpen)
			}
			f.wantMetrics(map[string]float64{"tandem_handoffs_stranded_total": float64(c.stranded), "tandem_retries_total{leg=decode}": 1})
		}
	}
}

// A hand-off that its decode server never saw is given up where no server that is left can read it: the
// others have other weights, as during a rollout, or there are none. The request is served without it if
// it can be.
func TestRun_AHandoffThatNoServerLeftCanReadIsGivenUp(t *testing.T) {
	for _, others := range []int{0, 1} {
		for _, stream := range []bool{false, true} {
			f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1 + others, orchestrator: afresh})
			var specs []pools.Spec
			for _, s := range f.Fleet.Servers() {
				spec := s.Spec
				if others > 0 && spec.URL == f.decode[1].URL() {
					spec.Weights = "new"
				}
				specs = append(specs, spec)
			}
			if err := f.Fleet.Apply(specs); err != nil {
				t.Fatal(err)
			}
			f.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
			req := f.asks(api.Chat, more(api.Chat, stream))
			want := reference(t, req)
			got, err := f.run(t.Context(), req)
			if served := others > 0; (err == nil) != served || served && (got.text != want || got.Decode != f.server(f.decode[1]).ID()) {
				t.Errorf("%d others, stream %v: %q, %v, want %q", others, stream, got.text, err, want)
			}
			if d, _ := f.Decisions.Find("r"); d.Choices[0].Chosen.Prefill != f.server(f.prefill[0]).ID() {
				t.Errorf("%d others, stream %v: chosen was no pair first, but %+v", others, stream, d.Choices[0].Chosen)
			}
			f.decode[0].ClearFaults()
			f.nothingIsLeft()
			f.wantMetrics(map[string]float64{"tandem_handoffs_stranded_total": 1, "tandem_retries_total": float64(others)})
		}
	}
}

// A client that leaves ends what is under way for it, whichever leg that is: the engines are
// free, and no server is blamed.
func TestRun_AClientThatLeavesEndsItsLegs(t *testing.T) {
	for _, connector := range []string{engine.ConnectorNIXL, engine.ConnectorSGLang} {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			for _, fault := range []string{engine.FaultHangBeforeHeaders, engine.FaultHangAfterHeaders} {
				for _, stream := range []bool{false, true} {
					f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.Connector = connector }})
					hangs := f.prefill[0]
					if role == pools.Decode {
						hangs = f.decode[0]
					}
					hangs.SetFault(engine.Fault{Kind: fault})
					ctx, leave := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					req := f.asks(api.Chat, more(api.Chat, stream))
					go func() {
						_, err := f.run(ctx, req)
						ended <- err
					}()
					f.eventually("the leg hangs", func() bool { return hangs.State().ServerLoad > 0 })
					leave()
					var failed *LegError
					if err := <-ended; !errors.As(err, &failed) || failed.Kind != Gone || !errors.Is(err, context.Canceled) {
						t.Errorf("%s, %s, %s: %v", connector, role, fault, err)
					}
					f.nothingIsLeft()
					f.wantMetrics(map[string]float64{"tandem_retries_total": 0, "tandem_handoffs_stranded_total": 0})
					for _, s := range f.Fleet.Servers() {
						if !s.Health().Up || s.State() != pools.Alive {
							t.Errorf("%s is held guilty: %v", s.ID(), s.State())
						}
					}
				}
			}
		}
	}
}

// A prefill server that fails is ejected; one that answers 500 to a tool call that is demanded is
// not, since vLLM does that to the request.
func TestRun_AForcedToolIsNoFaultOfPrefill(t *testing.T) {
	for _, forced := range []bool{true, false} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1})
		f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: api.Chat.Path})
		s := f.server(f.prefill[0])
		for range 5 { // as many in a row eject
			req := f.asks(api.Chat, more(api.Chat, false))
			req.ForcedTool = forced
			if got := f.served(req); got.Prefill != "" {
				t.Errorf("forced %v: prefill ran on %s", forced, got.Prefill)
			}
		}
		retries, want := 5.0, breaker.Open
		if forced {
			retries, want = 0, breaker.Closed
		}
		if got := s.Breaker(pools.Prefill, time.Now()); got != want {
			t.Errorf("forced %v: the breaker of prefill is %s", forced, got)
		}
		f.nothingIsLeft()
		f.wantMetrics(map[string]float64{"tandem_retries_total": retries})
	}
}

// Where decode calls prefill itself, what fails may be either server's: the next attempt leaves
// out both where the engines failed or were silent, and decode alone where that was busy.
func TestRun_WhatDecodeFailsAtWithPrefillLeavesOutBoth(t *testing.T) {
	for name, c := range map[string]struct {
		fault engine.Fault
		other bool // prefill server, for the next attempt
	}{
		"it fails":     {engine.Fault{Kind: engine.FaultStatus, Status: 502, Count: 1}, true},
		"it is silent": {engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 1}, true},
		"it is busy":   {engine.Fault{Kind: engine.FaultStatus, Status: 503, Count: 1}, false},
	} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 2, engine: with(t, engine.ConnectorSidecar), orchestrator: quickly})
		req := f.asks(api.Chat, more(api.Chat, true))
		want := reference(t, req)
		f.decode[0].SetFault(c.fault)
		f.decode[1].SetFault(c.fault)
		got := f.served(req)
		if got.text != want {
			t.Errorf("%s: %q, want %q", name, got.text, want)
		}
		decision, _ := f.Decisions.Find("r")
		p := f.server(f.prefill[0]).ID()
		if n := len(decision.Choices); n < 2 || decision.Choices[0].Chosen.Prefill != p || (decision.Choices[1].Chosen.Prefill != p) != c.other {
			t.Errorf("%s: chosen were %+v", name, decision.Choices)
		}
		f.nothingIsLeft()
	}
}

// No leg is sent before both servers of a pair have the adapter: what fails to load it is left
// out as not ready, whatever its peer did, and is not asked for anything.
func TestRun_LegsWaitForTheAdapterOnBothServers(t *testing.T) {
	for name, c := range map[string]struct {
		fails   func(*engineFleet) *engine.Engine
		leg     Leg
		outcome string // that the client sees where no other server has it
	}{
		"all load it": {func(*engineFleet) *engine.Engine { return nil }, "", ""},
		"prefill":     {func(f *engineFleet) *engine.Engine { return f.prefill[0] }, PrefillLeg, ""},
		"decode":      {func(f *engineFleet) *engine.Engine { return f.decode[0] }, DecodeLeg, "error"},
	} {
		f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, adapters: []string{"ada"}})
		bad := c.fails(f)
		if bad != nil {
			bad.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: "/v1/load_lora_adapter"})
		}
		_, err := f.run(t.Context(), requestOf(t, api.Chat, `{"model":"ada",`+promptOf(api.Chat)+more(api.Chat, false)+`}`))
		if (err != nil) != (c.outcome != "") {
			t.Errorf("%s: %v", name, err)
		}
		decision, _ := f.Decisions.Find("r")
		if bad != nil && !strings.HasPrefix(decision.Choices[0].Outcome, string(c.leg)+" on "+f.server(bad).ID()) {
			t.Errorf("%s: the first attempt is remembered as %q", name, decision.Choices[0].Outcome)
		}
		for _, e := range append(f.prefill[:1:1], f.decode...) {
			legs := 0
			for _, r := range e.State().Requests {
				if r.Path == api.Chat.Path && !strings.Contains(r.RequestID, "canary") {
					legs++
				}
			}
			if e == bad && legs != 0 || bad == nil && legs != 1 {
				t.Errorf("%s: %d legs were sent to %s", name, legs, f.server(e).ID())
			}
		}
		f.nothingIsLeft()
	}
}
