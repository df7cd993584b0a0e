package pd

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/leader/leaderpb"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// cuttingFleet binds late before a pair of engines that take pieces, if version says so.
func cuttingFleet(t *testing.T, version string) *engineFleet {
	t.Helper()
	return cuttingFleetOf(t, func(cfg *engine.Config) { cfg.Version = version })
}

func cuttingFleetOf(t *testing.T, engines func(*engine.Config)) *engineFleet {
	t.Helper()
	f := newEngineFleet(t, fleetShape{prefill: 1, decode: 1, engine: engines, orchestrator: func(o *Orchestrator) {
		o.Binder.Late = NewDecider(o.Binder.Chooser, order.DefaultConfig(), time.Minute, o.Log)
	}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); f.Binder.Late.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended; f.Wait() })
	f.identified()
	return f
}

// longRequest is a request of so many tokens, of which some are known for certain.
func (f *engineFleet) longRequest(prompt, certain int) *requestState {
	f.t.Helper()
	body, err := api.ParseBody([]byte(`{"model":"` + testModel + `"}`))
	if err != nil {
		f.t.Fatal(err)
	}
	ids := make([]uint32, prompt)
	rng := rand.New(rand.NewPCG(uint64(prompt), uint64(certain)))
	for i := range ids {
		ids[i] = 300 + rng.Uint32N(1000)
	}
	req := &Request{ID: "r", Model: testModel, Dialect: api.Completions, Body: body, PromptTokens: prompt, OutputTokens: 10, Header: map[string][]string{}}
	st := &requestState{client: req, arrived: time.Now(), entry: &queue.Entry{}}
	f.reset(st)
	st.bind.prefix = &prefix{model: testModel, known: true, tokens: tokens.Tokens{IDs: ids, Certain: certain, Complete: true}}
	st.bind.certain = st.bind.prefix.certainTokens()
	return st
}

// bindLong gives a long request its servers, and cuts its prompt.
func (f *engineFleet) bindLong(prompt, certain int) (*requestState, *binding) {
	f.t.Helper()
	return f.bindInPieces(prompt, certain, 1)
}

// bindInPieces gives a long request its servers, its prompt being cut where a piece takes longer.
func (f *engineFleet) bindInPieces(prompt, certain int, pieces cost.Pieces) (*requestState, *binding) {
	f.t.Helper()
	st := f.longRequest(prompt, certain)
	st.bind.pieces = pieces
	b, err := f.Binder.Late.await(f.t.Context(), f.Binder.Late.arrive(&st.bind))
	if err != nil {
		f.t.Fatal(err)
	}
	return st, b
}

// All of a prompt but its last piece is prefilled and pulled, each token once, and the places are
// given back but for that of the last leg and of decode.
func TestPrefillPieces_LeaveTheLastOne(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	st, b := f.bindLong(7000, 7000)
	if b.upTo != 2048 {
		t.Fatalf("the first piece goes to %d", b.upTo)
	}
	if failed := (pieceLegs{f.Orchestrator}).prefillPieces(t.Context(), st, b); failed != nil {
		t.Fatal(failed)
	}
	b.awaitPulled(t.Context())
	if b.upTo != 0 || b.cut.tokens < 5500 || b.cut.tokens >= 7000 || b.cut.computed != b.cut.tokens || b.cut.done < 3 || st.bind.begun != nil {
		t.Errorf("%+v, the next goes to %d, begun %+v", b.cut, b.upTo, st.bind.begun)
	}
	p, d := f.prefill[0].State(), f.decode[0].State()
	if p.PrefillsDone != b.cut.done || p.HandoffsPulled != b.cut.done || d.DecodesDone != b.cut.done || p.HandoffsOpen != 0 {
		t.Errorf("%d pieces: %d prefilled, %d pulled, %d decoded, %d open", b.cut.done, p.PrefillsDone, p.HandoffsPulled, d.DecodesDone, p.HandoffsOpen)
	}
	if now := f.server(f.prefill[0]).InFlight(pools.Prefill, time.Now()); now.Requests != 1 || now.Tokens != 7000 {
		t.Errorf("%+v on prefill, want the whole prompt of the last leg", now)
	}
	usage := `{"usage":{"prompt_tokens":7000,"prompt_tokens_details":{"cached_tokens":6500}}}`
	_, found := b.withoutPieces(answered(t, usage))
	if found != (api.Count{Tokens: 6500, Known: true}) {
		t.Errorf("the last leg found %+v", found)
	}
	f.Wait()
	if begun, ended := len(f.spans.Started()), len(f.spans.Ended()); begun != ended {
		t.Errorf("%d spans began, %d ended", begun, ended)
	}
	b.release()
	f.eventually("nothing is claimed", func() bool {
		now := time.Now()
		return f.server(f.prefill[0]).InFlight(pools.Prefill, now).Requests+f.server(f.decode[0]).InFlight(pools.Decode, now).Requests == 0
	})
}

// While decode pulls a piece the links of both servers are taken, for whoever is bound meanwhile.
func TestPullPiece_TakesTheLink(t *testing.T) {
	t.Parallel()
	f := cuttingFleetOf(t, func(cfg *engine.Config) {
		cfg.Version, cfg.TimeScale, cfg.LinkBytesPerSecond = "0.32.0", 1, 1e6 // the pull would take minutes
	})
	st, b := f.bindLong(7000, 7000)
	toCome := f.linkOf(b.chosen.Decode).Coming
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if failed := (pieceLegs{f.Orchestrator}).prefillPiece(ctx, st, b); failed != nil {
		t.Fatal(failed)
	}
	taken := func() bool {
		return f.linkOf(b.chosen.Prefill).Moving > 0 && f.linkOf(b.chosen.Decode).Moving > 0
	}
	f.eventually("the links are taken", taken)
	cancel()
	f.eventually("they are free", func() bool { return !taken() })
	if now := f.linkOf(b.chosen.Decode).Coming; now <= 0 || now >= toCome {
		t.Errorf("%v are to come of a request that goes on, and %v were before a piece of it began to move", now, toCome)
	}
	b.undo()
	f.nothingIsLeft()
}

// From when a request has its servers on, others count with the transfer of its KV: less what has begun to move, and no
// longer once it has.
func TestBinding_OthersCountWithTheTransferToCome(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	_, b := f.bindInPieces(7000, 7000, 0)
	for _, id := range []string{b.chosen.Prefill, b.chosen.Decode} {
		if c := f.linkOf(id); c.Moving != 0 || c.Coming <= 0 || c.ComesIn <= 0 || c.ComesIn > b.chosen.Terms.PrefilledIn() {
			t.Errorf("%s: %v under way, %v to come in %v, of a prefill of %v", id, c.Moving, c.Coming, c.ComesIn, b.chosen.Terms.PrefilledIn())
		}
	}
	if c := f.linkOf(b.chosen.Decode); c.KVComing < 7000 || c.KVComing != f.server(f.decode[0]).InFlight(pools.Decode, time.Now()).Tokens || c.KVComesIn <= 0 {
		t.Errorf("room for %d tokens is kept on decode, which come in %v", c.KVComing, c.KVComesIn)
	}
	b.undo()
	f.nothingIsLeft()
}

// bindCut gives a request servers whose link is so slow that its prompt is cut, and one place to each part.
func (f *engineFleet) bindCut(prompt, certain int) (*requestState, *binding) {
	f.t.Helper()
	f.Binder.Cost.KVBytesPerToken = 256 << 10
	return f.bindInPieces(prompt, certain, cost.Pieces(time.Hour))
}

// Of a prompt whose transfer takes long decode pulls the larger part while the rest is computed, which has its
// place on the server from the beginning on and waits for no turn.
func TestPrefillPieces_TheRestBehindACutFollowsAtOnce(t *testing.T) {
	t.Parallel()
	const prompt = 20_000
	f := cuttingFleet(t, "0.32.0")
	st, b := f.bindCut(prompt, prompt)
	if len(b.behindCuts) < 2 {
		t.Fatalf("cut at %d, of the rest %d parts have their place, want two", b.upTo, len(b.behindCuts))
	}
	parts := len(b.behindCuts) // behind the first one
	rest, cut := b.behindCuts[parts-1], b.behindCuts[parts-2].upTo
	if b.upTo < 2048 || cut <= b.upTo || cut >= prompt || rest.upTo != 0 {
		t.Fatalf("cut at %d, the last time at %d, and then up to %d", b.upTo, cut, rest.upTo)
	}
	in := func() pools.InFlight { return f.server(f.prefill[0]).InFlight(pools.Prefill, time.Now()) }
	if now := in(); now.Requests != parts+1 || now.Tokens != prompt || now.Rest != 0 {
		t.Errorf("%+v on prefill, want the whole prompt in %d parts", now, parts+1)
	}
	if failed := (pieceLegs{f.Orchestrator}).prefillPieces(t.Context(), st, b); failed != nil {
		t.Fatal(failed)
	}
	b.awaitPulled(t.Context())
	if now := in(); b.prefill != rest.prefill || len(b.behindCuts) > 0 || b.upTo != 0 || b.cut.tokens != cut || b.cut.done != parts || now.Requests != 1 || now.Tokens != prompt-cut {
		t.Errorf("%+v, the next goes to %d; %+v on prefill", b.cut, b.upTo, now)
	}
	p, d := f.prefill[0].State(), f.decode[0].State()
	if p.PrefillsDone != parts || p.HandoffsPulled != parts || d.DecodesDone != parts {
		t.Errorf("%d prefilled, %d pulled, %d decoded, want %d of each", p.PrefillsDone, p.HandoffsPulled, d.DecodesDone, parts)
	}
	b.undo()
	f.nothingIsLeft()
}

// Where it fails, or comes to nothing, the place of the rest is given back as well; and no cut goes beyond what
// is known for certain, or to a server that loses pieces.
func TestPrefillPieces_NoPlaceIsLeftBehindACut(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	_, b := f.bindCut(20_000, 20_000)
	if len(b.behindCuts) == 0 {
		t.Error("it is not cut")
	}
	b.undo()
	f.nothingIsLeft()
	if _, b = f.bindCut(20_000, 2048); b.upTo != 0 || len(b.behindCuts) > 0 {
		t.Errorf("with 2048 tokens certain it is cut at %d", b.upTo)
	}
	b.undo()
	st, b := f.bindCut(20_000, 20_000)
	f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "prefill"})
	if failed := f.Orchestrator.prefill(t.Context(), st, b); failed == nil || failed.Status != 500 {
		t.Errorf("%v", failed)
	}
	f.nothingIsLeft()
	f.Binder.pieceLosses.Observe(b.chosen.Prefill, false, time.Now())
	if _, b = f.bindCut(20_000, 20_000); b.upTo != 0 {
		t.Errorf("on a server that lost a piece it is cut at %d", b.upTo)
	}
	b.undo()
}

// Where prefill says the first token nobody waits for the transfer, as far as the second one is due within the
// objective for gaps: no cut is to hide it.
func TestPrefillPieces_NoCutHidesATransferThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	f.Binder.Cost.KVBytesPerToken = 256 << 10
	for _, c := range []struct {
		fromPrefill bool
		itl         time.Duration
		cut         bool
	}{{true, time.Minute, false}, {true, time.Millisecond, true}, {true, 0, true}, {false, time.Minute, true}} {
		st := f.longRequest(20_009, 20_009) // no whole number of blocks: prefill may say the first token
		st.bind.pieces, st.bind.firstFromPrefill, st.bind.req.ITL = cost.Pieces(time.Hour), c.fromPrefill, c.itl
		b, err := f.Binder.Late.await(t.Context(), f.Binder.Late.arrive(&st.bind))
		if err != nil {
			t.Fatal(err)
		}
		if b.chosen.Terms.FirstFromPrefill != c.fromPrefill || b.upTo > 0 != c.cut {
			t.Errorf("%+v: cut at %d, prefill says first: %v", c, b.upTo, b.chosen.Terms.FirstFromPrefill)
		}
		b.undo()
	}
}

// No piece goes beyond what is known for certain, nor to engines that are not known to take them.
func TestPieceEnd_WhereAPromptIsPrefilledWhole(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	for certain, want := range map[int]int{2047: 0, 2048: 2048} {
		_, b := f.bindLong(7000, certain)
		if b.upTo != want {
			t.Errorf("%d tokens are certain: the first piece goes to %d", certain, b.upTo)
		}
		b.undo()
	}
	if _, b := cuttingFleet(t, "0.11.0").bindLong(7000, 7000); b.upTo != 0 {
		t.Errorf("an engine of another version gets a piece up to %d", b.upTo)
	}
}

// A leg that fails ends the pieces, and its place is given back.
func TestPrefillPieces_ALegFails(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	st, b := f.bindLong(7000, 7000)
	f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "prefill"})
	failed := pieceLegs{f.Orchestrator}.prefillPieces(t.Context(), st, b)
	if failed == nil || failed.Leg != PrefillLeg || failed.Status != 500 || b.cut.done != 0 {
		t.Errorf("%v after %d pieces", failed, b.cut.done)
	}
	if n := f.server(f.prefill[0]).InFlight(pools.Prefill, time.Now()).Requests; n != 0 {
		t.Errorf("%d places are held", n)
	}
	b.release()
}

// A server that drains takes no more of a prompt that it began; the retry that follows is none of
// the budget's.
func TestPrefillPieces_TheServerDrains(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	st, b := f.bindLong(7000, 7000)
	f.Fleet.SetDrain(b.chosen.Prefill, true)
	failed := pieceLegs{f.Orchestrator}.prefillPieces(t.Context(), st, b)
	var none *NoServerError
	if failed == nil || failed.Kind != Unready || !errors.As(failed.Err, &none) || !st.retryWithoutBudget || b.cut.done != 1 {
		t.Errorf("%v after %d pieces", failed, b.cut.done)
	}
	b.release()
}

// The replica that decides counts of another one's request what that is going to send: a piece, or
// the whole prompt where nothing is certain; and the rest of one that has begun goes where it began.
func TestRemoteRequests_AreCutAsTheirReplicaDoes(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	prefill, decode := f.server(f.prefill[0]), f.server(f.decode[0])
	begun := &leaderpb.Begun{Prefill: prefill.ID(), Decode: decode.ID(), Tokens: 2048}
	for _, c := range []struct {
		certain uint32
		begun   *leaderpb.Begun
		claimed int
	}{{0, nil, 7000}, {7000, nil, 2048}, {7000, begun, 4096}} {
		f.Binder.Config.Pieces = 1
		bound, err := f.Binder.Late.RemoteRequests().Bind(t.Context(), &leaderpb.RemoteRequest{
			Model: testModel, Base: testModel, Api: api.Completions.Name, PromptTokens: 7000, OutputTokens: 10, Exact: true, CertainTokens: c.certain, Begun: c.begun,
		})
		if err != nil {
			t.Fatal(err)
		}
		if now := prefill.InFlight(pools.Prefill, time.Now()); now.Tokens != c.claimed || bound.Turn.Prefill != prefill.ID() {
			t.Errorf("%d tokens are certain, begun %v: %+v on prefill, want %d tokens", c.certain, c.begun, now, c.claimed)
		}
		if n := decode.InFlight(pools.Decode, time.Now()).Requests; (n == 0) != (c.begun != nil) {
			t.Errorf("begun %v: %d places on decode", c.begun, n)
		}
		bound.Release()
	}
}

// The places of a pair whose pieces failed are given back, decode's too, which did nothing yet.
func TestPrefill_PiecesThatFailHoldNoPlace(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	st, b := f.bindLong(7000, 7000)
	f.prefill[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "prefill"})
	if failed := f.Orchestrator.prefill(t.Context(), st, b); failed == nil || failed.Status != 500 {
		t.Errorf("%v", failed)
	}
	f.nothingIsLeft()
}

// Only a request that waits for a pair is cut: not one that runs whole, nor one of which prefill says
// all, nor one that a proxy sends.
func TestMayCut_WherePrefillIsNotTheLastToComputeIt(t *testing.T) {
	ch := &Chooser{}
	ch.Config.Pieces = 2
	for name, c := range map[string]struct {
		r    bindRequest
		want cost.Pieces
	}{
		"a pair's":         {bindRequest{req: &Request{MaxOutput: 2}}, 2},
		"it runs whole":    {bindRequest{req: &Request{MaxOutput: 2}, tried: priorAttempts{mustAggregate: true}}, 0},
		"one token is all": {bindRequest{req: &Request{MaxOutput: 1}}, 0},
		"a proxy sends it": {bindRequest{req: &Request{MaxOutput: 2, proxied: true}}, 0},
	} {
		if got := ch.mayCut(&c.r); got != c.want {
			t.Errorf("%s: cut by %v, want %v", name, got, c.want)
		}
	}
}

// What is left of a prompt is bound at once where nobody says whose turn it is; where its server takes
// no more of it, that is why it failed.
func TestBindRest_OfWhatNobodyGivesATurn(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	st, b := f.bindLong(7000, 7000)
	st.bind.begun = &begunPrefill{prefill: b.chosen.Prefill, decode: b.chosen.Decode, tokens: b.upTo}
	b.prefill.Release()
	f.Fleet.SetReplicaWork(busyReplicas{})
	rest, err := f.Binder.BindRest(t.Context(), &st.bind)
	if err != nil || rest.prefill.Server().ID() != b.chosen.Prefill || rest.decode != nil {
		t.Fatalf("%+v, %v", rest, err)
	}
	rest.undo()
	f.Fleet.SetDrain(b.chosen.Prefill, true)
	if rest, err = f.Binder.BindRest(t.Context(), &st.bind); rest != nil || !errors.Is(err, errRestRefused) {
		t.Errorf("it drains: %+v, %v", rest, err)
	}
	b.release()
	f.nothingIsLeft()
}

// busyReplicas are other gateways that have work under way, on servers of their own.
type busyReplicas struct{}

func (busyReplicas) Busy(time.Time) int { return 1 }

func (busyReplicas) InFlight(string, pools.Role, time.Time) pools.InFlight { return pools.InFlight{} }

// A piece is lost where the next one finds less of it cached than all but the block that it ended in,
// or does not say: the server's pieces are larger then, or none.
func TestJudgePiece_WhatTheNextOneFinds(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	s := f.server(f.prefill[0])
	block := s.BlockTokens()
	for name, c := range map[string]struct {
		cached api.Count
		kept   bool
	}{
		"all":             {api.Count{Tokens: 2048, Known: true}, true},
		"all but a block": {api.Count{Tokens: 2048 - block, Known: true}, true},
		"less":            {api.Count{Tokens: 2048 - block - 1, Known: true}, false},
		"nobody knows":    {api.Count{Tokens: 2048}, false},
	} {
		f.Binder.pieceLosses = predict.PieceLosses{}
		outcome := map[bool]string{true: "kept", false: "lost"}[c.kept]
		before := f.metric("tandem_prefill_pieces_total", "outcome", outcome)
		(pieceLegs{f.Orchestrator}).judgePiece(&binding{cut: cutPrompt{done: 1, tokens: 2048}}, s, c.cached)
		if factor := f.Binder.pieceLosses.Factor(s.ID(), time.Now()); (factor == 1) != c.kept {
			t.Errorf("%s is found: the next pieces are %d times as large", name, factor)
		}
		if n := f.metric("tandem_prefill_pieces_total", "outcome", outcome) - before; n != 1 {
			t.Errorf("%s is found: %v count as %s", name, n, outcome)
		}
	}
}

// Of a prompt that is sent in pieces all is expected on its server, by others: not what the first piece
// has alone, nor by the request itself, whose next piece would be taken for computed.
func TestBindLong_OthersFollowTheWholePrompt(t *testing.T) {
	t.Parallel()
	f := cuttingFleet(t, "0.32.0")
	source, err := f.Binder.Locality.Index.Open(kvstate.Spec{SourceID: kvstate.SourceID{Server: f.server(f.prefill[0]).ID()}, Model: testModel, BlockTokens: 16})
	if err != nil {
		t.Fatal(err)
	}
	source.ApplyLive(kvstate.Message{Payload: stored(testPrompt(64))}) // one that has published nothing has no place
	st, b := f.bindLong(7000, 7000)
	defer b.undo()
	held := func(st *requestState) cost.Candidate {
		return f.Binder.snapshotFor(&st.bind, nil, time.Now()).candidates.Prefill[0]
	}
	if c := held(f.longRequest(7000, 7000)); c.Cached.GPU < 6900 || c.Cached.Pending != c.Cached.GPU || c.Rest <= 0 {
		t.Errorf("another finds %+v, and %v of it left", c.Cached, c.Rest)
	}
	st.bind.begun = &begunPrefill{prefill: b.chosen.Prefill, decode: b.chosen.Decode, tokens: b.upTo}
	if c := held(st); c.Cached.GPU != b.upTo || c.Cached.Pending != 0 {
		t.Errorf("the request itself finds %+v behind %d tokens", c.Cached, b.upTo)
	}
}
