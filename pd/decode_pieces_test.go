package pd

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// decodingFleet is a decode engine alone that computes long prompts in pieces.
func decodingFleet(t *testing.T, change func(*engine.Config)) *engineFleet {
	t.Helper()
	f := newEngineFleet(t, fleetShape{decode: 1, engine: func(cfg *engine.Config) {
		cfg.Version = "0.32.0"
		change(cfg)
	}, orchestrator: func(o *Orchestrator) {
		o.Binder.Config.DecodePieces = 50 * time.Millisecond
		o.Transport.(*enginehttp.Transport).DisableKeepAlives = true // no leg goes out on a connection of a probe
	}})
	f.identified()
	return f
}

// bindAlone gives a long request its decode server.
func (f *engineFleet) bindAlone(prompt, certain int) (*requestState, *binding) {
	f.t.Helper()
	st := f.longRequest(prompt, certain)
	b, err := f.Binder.bindNow(&st.bind)
	if err != nil {
		f.t.Fatal(err)
	}
	return st, b
}

// All of a prompt but its last piece is computed, each token once; the trace and the counts say so,
// and the place is kept for the last leg.
func TestDecodePieces_LeaveTheLastOne(t *testing.T) {
	t.Parallel()
	f := decodingFleet(t, func(*engine.Config) {})
	st, b := f.bindAlone(7000, 7000)
	if failed := f.Orchestrator.prefill(t.Context(), st, b); failed != nil {
		t.Fatal(failed)
	}
	if b.cut.done < 2 || b.cut.tokens <= 0 || b.cut.tokens >= 7000 || b.cut.computed != b.cut.tokens {
		t.Errorf("%+v", b.cut)
	}
	if end := b.decodePieces.End(b.cut.tokens, 7000); end != 7000 {
		t.Errorf("behind %d tokens the next piece ends at %d", b.cut.tokens, end)
	}
	if d := f.decode[0].State(); d.AggregatedDone != b.cut.done {
		t.Errorf("%d legs for %d pieces", d.AggregatedDone, b.cut.done)
	}
	said := f.attributes("decode")
	if said["tandem.leg"] != attribute.StringValue("piece") || said["tandem.piece"] != attribute.IntValue(b.cut.done) || said["tandem.prompt_tokens"] != attribute.IntValue(b.cut.tokens) {
		t.Errorf("the trace says of the last piece %v", said)
	}
	if own := b.promptSide().Own; own != b.cut.tokens {
		t.Errorf("%d cached tokens are taken for our own", own)
	}
	f.wantMetrics(map[string]float64{"tandem_prefill_pieces_total{outcome=on_decode}": float64(b.cut.done), "tandem_prefill_pieces_total": float64(b.cut.done)})
	s := f.server(f.decode[0])
	if n := s.InFlight(pools.Decode, time.Now()).Requests; n != 1 {
		t.Errorf("%d places are held for the last leg", n)
	}
	before := s.PrefillCurve()
	sample := f.Binder.beginTransfer(st, b, time.Now())
	streamedAnswer{f.Orchestrator}.learnFirst(t.Context(), st, b, &sample, time.Second, time.Now())
	if n := s.InFlight(pools.Prefill, time.Now()).Requests; n != 0 || s.PrefillCurve() != before {
		t.Errorf("behind the first token %d prompts are ahead of others, the curve has changed: %v", n, s.PrefillCurve() != before)
	}
	b.release()
	f.nothingIsLeft()
}

// No piece goes beyond what is known for certain.
func TestDecodePieces_EndWithWhatIsCertain(t *testing.T) {
	t.Parallel()
	f := decodingFleet(t, func(*engine.Config) {})
	for short, want := range map[int]int{0: 1, 1: 0} {
		st, b := f.bindAlone(7000, 7000)
		st.bind.certain = b.decodePieces.End(0, 7000) - short
		if failed := (pieceLegs{f.Orchestrator}).decodePieces(t.Context(), st, b); failed != nil || b.cut.done != want {
			t.Errorf("%d tokens are certain: %v, %d pieces", st.bind.certain, failed, b.cut.done)
		}
		b.undo()
	}
}

// Where the cache has lost a piece the rest is computed at once, and other prompts there for a while.
func TestDecodePieces_TheCacheKeepsNone(t *testing.T) {
	t.Parallel()
	f := decodingFleet(t, func(cfg *engine.Config) { cfg.NoPrefixCaching = true })
	st, b := f.bindAlone(7000, 7000)
	if failed := (pieceLegs{f.Orchestrator}).decodePieces(t.Context(), st, b); failed != nil || b.cut.done != 2 {
		t.Errorf("%v after %d pieces", failed, b.cut.done)
	}
	b.undo()
	f.wantMetrics(map[string]float64{"tandem_prefill_pieces_total{outcome=on_decode}": 2, "tandem_prefill_pieces_total{outcome=lost}": 1})
	if !f.server(f.decode[0]).LosesPieces(time.Now()) {
		t.Error("nobody remembers that the server lost a piece")
	}
	if _, b = f.bindAlone(7000, 7000); b.decodePieces.Seconds != 0 {
		t.Errorf("the next prompt is cut into pieces of %v s", b.decodePieces.Seconds)
	}
	b.undo()
	f.nothingIsLeft()
}

// A piece is lost where more of what came before is not cached than the block that it ended in; what
// an engine does not report is believed. What was computed counts without what was cached.
func TestDecodePiece_WhatTheCacheHadOfTheOnesBefore(t *testing.T) {
	t.Parallel()
	f := decodingFleet(t, func(*engine.Config) {})
	block := f.server(f.decode[0]).BlockTokens()
	for name, c := range map[string]struct {
		done, before int
		cached       string
		kept         bool
		computed     int
	}{
		"the first":                {0, 0, `"prompt_tokens_details":{"cached_tokens":0}`, true, 4000},
		"the first, cached before": {0, 2000, `"prompt_tokens_details":{"cached_tokens":0}`, true, 4000},
		"all is there":             {1, 2000, `"prompt_tokens_details":{"cached_tokens":2000}`, true, 2000},
		"but for a block":          {1, 2000, fmt.Sprintf(`"prompt_tokens_details":{"cached_tokens":%d}`, 2000-block), true, 2000 + block},
		"but for more":             {1, 2000, fmt.Sprintf(`"prompt_tokens_details":{"cached_tokens":%d}`, 2000-block-1), false, 2000 + block + 1},
		"it does not say":          {1, 2000, `"completion_tokens":1`, true, 2000},
	} {
		st, b := f.bindAlone(7000, 7000)
		b.cut.done, b.cut.tokens = c.done, c.before
		f.Transport = sends(func(r *http.Request) (*http.Response, error) {
			body := `{"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":4000,` + c.cached + `}}`
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
		kept, failed := (pieceLegs{f.Orchestrator}).decodePiece(t.Context(), st, b, 4000)
		if failed != nil || kept != c.kept || b.cut.computed != c.computed {
			t.Errorf("%s: kept %v, %d tokens computed, %v", name, kept, b.cut.computed, failed)
		}
		b.undo()
	}
}

// A leg that fails ends the pieces: it is held against the server, and the place is given back.
func TestDecodePieces_ALegFails(t *testing.T) {
	t.Parallel()
	f := decodingFleet(t, func(*engine.Config) {})
	st, b := f.bindAlone(7000, 7000)
	f.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	failed := (pieceLegs{f.Orchestrator}).decodePieces(t.Context(), st, b)
	if failed == nil || failed.Kind != Unsent || failed.Leg != AggregatedLeg || b.cut.done != 0 {
		t.Errorf("%v after %d pieces", failed, b.cut.done)
	}
	if f.server(f.decode[0]).Health().Up {
		t.Error("the server is not taken out")
	}
	f.decode[0].ClearFaults()
	f.nothingIsLeft()
}

// How long the streams beside a prompt may stand still: the objective for gaps goes before the
// setting, and what cannot be cut has no such time.
func TestGap_OfWhatCanBeCut(t *testing.T) {
	const setting, objective = 100 * time.Millisecond, 30 * time.Millisecond
	request := func(change func(*bindRequest)) *bindRequest {
		r := &bindRequest{req: &Request{Dialect: api.Chat, PromptTokens: 1000}, certain: 1000}
		change(r)
		return r
	}
	for name, c := range map[string]struct {
		setting, itl time.Duration
		r            *bindRequest
		want         time.Duration
	}{
		"by the setting":        {setting, 0, request(func(*bindRequest) {}), setting},
		"by the objective":      {setting, objective, request(func(*bindRequest) {}), objective},
		"off":                   {0, objective, request(func(*bindRequest) {}), 0},
		"it generates nothing":  {setting, 0, request(func(r *bindRequest) { r.req.Dialect = api.Embeddings }), 0},
		"it is to run whole":    {setting, 0, request(func(r *bindRequest) { r.req.Aggregated = true }), 0},
		"its end is not known":  {setting, 0, request(func(r *bindRequest) { r.certain = 1000 - mostUncertain(1000) }), setting},
		"more of it is unknown": {setting, 0, request(func(r *bindRequest) { r.certain = 1000 - mostUncertain(1000) - 1 }), 0},
	} {
		ch := &Chooser{}
		ch.Config.DecodePieces = c.setting
		if got := ch.gap(c.r, c.itl); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What is shown of a turn on decode alone leaves out the part of what streams wait that the order of service
// left out.
func TestDecodePieces_AreShownAsTheTurnPricedThem(t *testing.T) {
	f := decodingFleet(t, func(*engine.Config) {})
	for range 10 {
		lease, err := f.Fleet.Servers()[0].Claim(pools.Decode, curve.Work{Tokens: 1000}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release()
	}
	st := f.longRequest(20_000, 20_000)
	st.bind.base = testModel
	w := &waiter{request: &st.bind, done: make(chan bindResult, 1)}
	d := NewDecider(f.Binder.Chooser, order.DefaultConfig(), time.Hour, f.Log)
	d.arrivals = append(d.arrivals, w)
	d.decide()
	g := <-w.done
	if g.err != nil {
		t.Fatal(g.err)
	}
	defer g.b.release()
	c := &g.b.choice
	shown := func() float64 { return f.Binder.Cost.Explain(c.Demand, c.Candidates, c.Chosen, 1)[0].DelayToOthers }
	if got, want := shown(), g.b.chosen.Explained().DelayToOthers; math.Abs(got-want) > 0.01 {
		t.Errorf("a delay to others of %v ms is shown, chosen with %v", got, want)
	}
	priced := shown()
	if c.Candidates.StreamDiscount = 0; shown() < priced+0.01 {
		t.Errorf("no part of %v ms was left out", priced)
	}
}
