package pd

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
	"weak"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// connectors are all ways on which KV travels.
var connectors = []string{
	engine.ConnectorNIXL, engine.ConnectorNIXLPush, engine.ConnectorMooncake, engine.ConnectorOffload, engine.ConnectorP2PNCCL,
	engine.ConnectorSGLang, engine.ConnectorTRTLLM, engine.ConnectorStore, engine.ConnectorSidecar,
}

// with gives engines a connector; the store of all is an engine of its own.
func with(t *testing.T, connector string) func(*engine.Config) {
	kept := ""
	if connector == engine.ConnectorStore {
		kept = startEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Connector = connector }).State().KVAddress
	}
	return func(cfg *engine.Config) { cfg.Connector, cfg.Store = connector, kept }
}

// However KV travels, a pair answers as one engine alone, computes the prompt once, and holds
// nothing afterwards.
func TestConnectors_APairAnswersAsOneEngineAlone(t *testing.T) {
	for _, connector := range connectors {
		for _, stream := range []bool{false, true} {
			f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: with(t, connector)})
			req := f.asks(api.Chat, more(api.Chat, stream))
			got := f.served(req)
			if want := reference(t, req); got.text != want || got.Prefill != f.server(f.prefill[0]).ID() || got.Decode != f.server(f.decode[0]).ID() {
				t.Errorf("%s: %q by %q and %q, want %q", connector, got.text, got.Prefill, got.Decode, want)
			}
			f.nothingIsLeft()
			if n := f.decode[0].State().Recomputed; n != 0 {
				t.Errorf("%s: decode computed %d prompts again", connector, n)
			}
			f.wantMetrics(map[string]float64{
				"tandem_retries_total": 0, "tandem_aggregated_requests_total": 0, "tandem_silent_recomputes_total": 0, "tandem_handoffs_stranded_total": 0,
				"tandem_handoffs_missing_total": 0, "tandem_output_tokens_total": 12,
			})
			for _, s := range f.Fleet.Servers() {
				if state := s.Breaker(s.Role, time.Now()); state != breaker.Closed {
					t.Errorf("%s: the breaker of %s is %v", connector, s.ID(), state)
				}
			}
		}
	}
}

// However KV travels, one bad server costs no request: the other leg of its pair is ended, the
// answer is the right one, and the healthy servers stay in use.
func TestConnectors_OneBadServerCostsNoRequest(t *testing.T) {
	for i, connector := range connectors[1:] {
		for k, role := range []pools.Role{pools.Prefill, pools.Decode} {
			for n, fault := range []engine.Fault{
				{Kind: engine.FaultRefuse},
				{Kind: engine.FaultStatus, Status: 500},
				{Kind: engine.FaultStatus, Status: 503},
				{Kind: engine.FaultEmptyStream},
				{Kind: engine.FaultHangBeforeHeaders, Count: 1},
			} {
				stream := (i+k+n)%2 == 0
				t.Run(fmt.Sprintf("%s/%s/%s%d/stream=%v", connector, role, fault.Kind, fault.Status, stream), func(t *testing.T) {
					t.Parallel()
					limits := quickly
					if fault.Count == 0 {
						limits = nil
					}
					f := newEngineFleet(t, fleetShape{prefill: 2, decode: 2, engine: with(t, connector), orchestrator: limits})
					bad, others := f.prefill[0], f.decode
					if role == pools.Decode {
						bad, others = f.decode[0], f.prefill
					}
					req := f.asks(api.Chat, more(api.Chat, stream))
					want := reference(t, req)
					bad.SetFault(fault)
					for range 4 {
						if got := f.served(req); got.text != want {
							t.Fatalf("%q, want %q", got.text, want)
						}
					}
					bad.ClearFaults()
					f.nothingIsLeft()
					for _, e := range others {
						if s := f.server(e); !s.Health().Up {
							t.Errorf("%s is down", s.ID())
						}
					}
					for _, e := range slices.Concat(f.prefill, f.decode) {
						seen := map[string]bool{}
						for _, r := range e.State().Requests {
							if seen[r.RequestID] {
								t.Errorf("one server got the attempt %s twice", r.RequestID)
							}
							seen[r.RequestID] = true
						}
					}
				})
			}
		}
	}
}

// Where both legs run at once, nothing of a request is held when both have ended: not for as long as prefill
// might have gone on.
func TestRun_BothLegsLeaveNothingBehind(t *testing.T) {
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: func(c *engine.Config) { c.Connector = engine.ConnectorSGLang }})
	type held [1 << 10]byte
	serve := func(stream bool) weak.Pointer[held] {
		value := new(held)
		ctx, leave := context.WithCancel(context.WithValue(t.Context(), held{}, value))
		defer leave()
		if got, err := f.run(ctx, f.asks(api.Chat, more(api.Chat, stream))); err != nil || got.Prefill == "" {
			t.Fatalf("%v, by %q", err, got.Prefill)
		}
		return weak.Make(value)
	}
	begin := time.Now()
	for _, stream := range []bool{false, true} {
		of := serve(stream)
		f.eventually("the request is let go", func() bool {
			runtime.GC()
			return of.Value() == nil
		})
	}
	if took := time.Since(begin); took >= afterDecode {
		t.Errorf("requests were held for %v", took)
	}
}
