package pd

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Only servers that have met are priced as if they fetched: the others meet. A leader, which has no ids of another
// replica's prompt, books the fetch that the replica will make.
func TestSetFetches(t *testing.T) {
	prompt := testPrompt(6400)
	f := newTestFleet(t, 2, prompt) // prefill holds a quarter or a sixteenth of it
	meetings := new(predict.Meetings)
	f.Binder.Meetings, f.Binder.Config.FetchKV = meetings, true
	now := time.Now()
	r := &f.arrives(prompt, now).bind
	r.certain = len(prompt)
	view := func() snapshot {
		v := f.Binder.snapshotFor(r, nil, now)
		for i := range v.candidates.Prefill {
			v.candidates.Prefill[i].FetchBlock, v.candidates.Prefill[i].Prefill[1] = 16, 1 // a second for 1,000 tokens
		}
		for i := range v.candidates.Decode {
			v.candidates.Decode[i].FetchBlock = 16
		}
		v.candidates.Decode[0].Cached.GPU = 6400
		f.Binder.setFetches(r, &v, now)
		return v
	}
	claim := func(v *snapshot) *binding {
		b := &binding{chosen: cost.Alternative{Prefill: v.candidates.Prefill[1].ID, Decode: v.candidates.Decode[1].ID}}
		f.Binder.setPulls(r, v, b)
		return b
	}

	v := view()
	if b := claim(&v); v.candidates.Prefill[1].Remote.Fetched || b.fetch.from != nil || b.fetch.meets != v.decode[0] {
		t.Errorf("before they have met: offered %+v, bound to %+v", v.candidates.Prefill[1].Remote, b.fetch)
	}
	meetings.Observe(meetingOf(v.decode[0], v.prefill[1]), true, now)
	v = view()
	if b := claim(&v); !v.candidates.Prefill[1].Remote.Fetched || b.fetch.from != v.decode[0] || len(b.fetch.ids) != 6384 || b.fetch.lacked < 4000 || b.fetch.takes <= 0 || b.fetch.saves <= 0 {
		t.Errorf("once they have met: offered %+v, bound to %+v", v.candidates.Prefill[1].Remote, b.fetch)
	}
	if v.candidates.Prefill[0].Remote.Fetched {
		t.Error("the one that has not met is offered as much")
	}
	r.remote, r.prefix.tokens.IDs = true, nil
	v = view()
	if b := claim(&v); b.fetch.from != v.decode[0] || b.fetch.takes <= 0 || b.fetch.ids != nil {
		t.Errorf("another replica's request: bound to %+v", b.fetch)
	}
}

// A server that a leg of a fetch finds dead is taken out at once. Where it was to keep the KV, prefill computes the prompt;
// where it is the prefill server, the request goes to another one, and no second leg to the dead one, which may have died of
// the request.
func TestFetch_FindsAServerDead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prefill bool  // it is the one that dies
		broken  error // of the connection to it; nil: it refuses them
		probed  bool  // its probes fail, and nothing else does
		deaths  int   // that the request is suspected of
	}{
		"decode refuses connections":         {},
		"decode dies":                        {broken: io.ErrUnexpectedEOF},
		"prefill refuses connections":        {prefill: true},
		"prefill dies":                       {prefill: true, broken: io.ErrUnexpectedEOF, deaths: 1},
		"prefill has died before it read it": {prefill: true, broken: fmt.Errorf("%w: %w", enginehttp.ErrUnread, syscall.ECONNRESET)},
		"prefill's probes fail":              {prefill: true, probed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2, orchestrator: afresh, engine: func(cfg *engine.Config) { cfg.Version = "0.32.0" }})
			f.identified()
			f.Binder.Meetings = new(predict.Meetings)
			st := f.longRequest(7000, 7000)
			st.req.Body = withPrompt(t, st.bind.prefix.tokens.IDs)
			b, err := f.choose(t.Context(), st)
			if err != nil || b.prefill == nil {
				t.Fatalf("%+v, %v", b, err)
			}
			first, keeper := b.prefill.Server(), f.decode[0]
			if f.server(keeper) == b.decode.Server() {
				keeper = f.decode[1]
			}
			dies := keeper
			if c.prefill {
				dies = f.engineOf(first)
			}
			b.fetch = fetch{from: f.server(keeper), ids: st.bind.prefix.tokens.IDs[:4096], lacked: 4096, takes: time.Hour, saves: time.Second}
			var legs atomic.Int32
			through := f.Transport
			f.Transport = sends(func(r *http.Request) (*http.Response, error) {
				if "http://"+r.URL.Host != dies.URL() {
					return through.RoundTrip(r)
				}
				legs.Add(1)
				if c.probed {
					f.server(dies).ProbeFailed(&pools.Health{}, "for the test") // from then on it is sent no probe request
					failsOften(f.server(dies))
					return nil, r.Context().Err()
				}
				dies.SetFault(engine.Fault{Kind: engine.FaultRefuse})
				if c.broken != nil {
					return nil, c.broken
				}
				return through.RoundTrip(r)
			})
			attempts, deaths := 1, 0
			for failed := f.attempt(st, b); failed != nil; failed = f.attempt(st, b) {
				attempts++
				if left := first.InFlight(pools.Prefill, time.Now()).Requests; left != 0 {
					t.Errorf("%d places are held on the dead server", left)
				}
				if err := f.tryAgain(t.Context(), st, failed); err != nil {
					t.Fatal(err)
				}
				deaths = len(f.Suspects.List(time.Now())) // its answer acquits it
				if b, err = f.choose(t.Context(), st); err != nil {
					t.Fatal(err)
				}
			}
			if b.prefill == nil || (b.prefill.Server() == first) == c.prefill || (attempts == 1) == c.prefill {
				t.Errorf("after %d attempts it was served by %+v, prefill was %s", attempts, b.chosen, first.ID())
			}
			if down := f.down(); down != 1 || f.server(dies).Health().Up || legs.Load() != 1 {
				t.Errorf("%d servers are down, the dead one is up %v and got %d legs", down, f.server(dies).Health().Up, legs.Load())
			}
			if c.probed && first.Breaker(pools.Prefill, time.Now()) != breaker.Open {
				t.Error("the breaker of prefill was not told")
			}
			if deaths != c.deaths {
				t.Errorf("it is suspected of %d deaths, want %d", deaths, c.deaths)
			}
			f.wantMetrics(map[string]float64{
				"tandem_retries_total": float64(attempts - 1), "tandem_retries_total{leg=prefill}": float64(attempts - 1),
				"tandem_kv_fetches_total{outcome=not_fetched}": 1, "tandem_kv_fetches_total": 1,
			})
			st.release()
			f.nothingIsLeft()
		})
	}
}

// Where nothing is fetched no piece is longer than where nothing was to be: others wait for no more.
func TestFetch_WhatDoesNotComeIsCutAnew(t *testing.T) {
	t.Parallel()
	for prompt, cuts := range map[int]bool{7000: false, 6500: true} { // what is behind the fetch is two pieces, or one that is cut
		f := cuttingFleet(t, "0.32.0")
		f.Binder.Meetings = new(predict.Meetings)
		f.Binder.Cost.KVBytesPerToken = 2 << 20
		st := f.longRequest(prompt, prompt)
		st.bind.pieces = 1
		v := f.Binder.snapshotFor(&st.bind, nil, time.Now())
		from, to := f.server(f.decode[0]), f.server(f.prefill[0])
		c := &v.candidates.Prefill[0]
		c.Prefill[1], c.Remote = 1, cost.Remote{Server: from.ID(), Tokens: 4096, Latency: 0.01, Fetched: true} // a second for 1,000 tokens
		b, _ := f.Binder.claim(&st.bind, &v, cost.Alternative{Prefill: to.ID(), Decode: from.ID()}, &cost.Demand{}, time.Now())
		if b.fetch.from == nil || b.upTo <= 4096 || len(b.behindCuts) > 0 != cuts {
			t.Fatalf("%d tokens are cut at %d, and %d times more", prompt, b.upTo, len(b.behindCuts))
		}
		f.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "prefill"})
		if failed := (fetcher{f.Orchestrator}).fetch(t.Context(), st, b); failed != nil {
			t.Fatal(failed)
		}
		if in := to.InFlight(pools.Prefill, time.Now()); b.upTo != 2048 || len(b.behindCuts) > 0 || in.Requests != 1 {
			t.Errorf("%d tokens: the first piece goes to %d, %d parts behind it have a place, %+v", prompt, b.upTo, len(b.behindCuts), in)
		}
		if failed := (pieceLegs{f.Orchestrator}).prefillPieces(t.Context(), st, b); failed != nil {
			t.Fatal(failed)
		}
		if b.cut.done < 2 || b.cut.computed != b.cut.tokens {
			t.Errorf("%d tokens: %+v", prompt, b.cut)
		}
		b.release()
		f.nothingIsLeft()
	}
}

// failsOften has a prefill server fail so often that one failure more opens its breaker.
func failsOften(s *pools.Server) {
	for range breaker.Default().Consecutive - 1 {
		if l, err := s.Claim(pools.Prefill, curve.Work{}, false, time.Now()); err == nil {
			l.RecordResult(io.ErrUnexpectedEOF)
			l.Release()
		}
	}
}

// attempt is an attempt at a request that is not streamed.
func (f *engineFleet) attempt(st *requestState, b *binding) *LegError {
	failed := f.Orchestrator.prefill(f.t.Context(), st, b)
	if failed == nil {
		failed = f.Orchestrator.decode(f.t.Context(), st, b)
	}
	if failed != nil {
		b.prediction.takeBack()
	}
	return failed
}

// engineOf is the engine of a server.
func (f *engineFleet) engineOf(s *pools.Server) *engine.Engine {
	all := slices.Concat(f.prefill, f.decode)
	return all[slices.IndexFunc(all, func(e *engine.Engine) bool { return e.URL() == s.URL })]
}

// withPrompt is a completion of a prompt by its ids.
func withPrompt(t *testing.T, ids []uint32) api.Body {
	t.Helper()
	list := strings.ReplaceAll(fmt.Sprint(ids), " ", ",")
	return requestOf(t, api.Completions, fmt.Sprintf(`{"model":%q,"max_tokens":3,"prompt":%s}`, testModel, list)).Body
}
