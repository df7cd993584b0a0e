package pd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// A long prompt is prefilled in pieces (cost.Pieces): legs of one token over growing beginnings of
// it, by token ids, that leave their KV in the engine's prefix cache. Between two of them the rest
// waits for its turn again, by what is left of it; decode pulls one while the next is computed. The
// last leg is that of any request, by the client's own body: what the pieces were wrong about is
// computed there.
//
// What is left at the end, or a prompt too short for that, may be cut once more (cost.Model.Cuts), so that most
// of its KV moves while the rest is computed. The rest waits for no turn then.

// begunPrefill is a prompt of which pieces are prefilled, and where.
type begunPrefill struct {
	prefill, decode string
	tokens          int // leading ones that are prefilled
}

// cutPrompt is what the goroutine of a request keeps of its pieces.
type cutPrompt struct {
	done     int           // pieces
	tokens   int           // of the prompt, in them
	computed int           // of those, what prefill did not have
	pulled   chan struct{} // closed when decode has what it was to pull so far; nil: nothing
}

// behindCut is a part of a prompt behind a cut, which has its place on the prefill server from the beginning.
type behindCut struct {
	upTo    int // tokens; 0: the whole prompt
	prefill *pools.Lease
}

// certainTokens are the leading tokens of a prompt that are known for certain, and are text.
func (p *prefix) certainTokens() int {
	if p == nil || !p.known || p.isGuessed() {
		return 0
	}
	certain := min(p.tokens.Certain, len(p.tokens.IDs))
	if len(p.tokens.Media) > 0 {
		certain = min(certain, slices.MinFunc(p.tokens.Media, func(a, b tokens.Medium) int { return a.Offset - b.Offset }).Offset)
	}
	return certain
}

// mayCut says how a request's prompt may be cut, where it waits for its turn. An answer of one
// token is prefill's own, and a proxy sends prompts whole.
func (ch *Chooser) mayCut(r *bindRequest) cost.Pieces {
	if r.tried.mustAggregate || r.req.MaxOutput == 1 || r.req.proxied {
		return 0
	}
	return ch.Config.Pieces
}

// pieceEnd is up to which token of a request's prompt a pair is to prefill it at once, 0 where that
// is the whole prompt.
func (ch *Chooser) pieceEnd(r *bindRequest, v *snapshot, prefill, decode int, now time.Time) int {
	if r.pieces == 0 || r.certain == 0 {
		return 0
	}
	from, to, c := v.prefill[prefill], v.decode[decode], &v.candidates.Prefill[prefill]
	if !connector.TakesPieces(from, to) || c.Remote.Tokens > c.Cached.GPU {
		return 0
	}
	pieces := r.pieces * cost.Pieces(ch.pieceLosses.Factor(from.ID(), now))
	end := pieces.End(c, r.req.PromptTokens, blockTokens(from, to))
	if end >= r.req.PromptTokens || end > r.certain {
		return 0
	}
	return end
}

// cutEnds are where a prefill of all that is left of a request's prompt is cut, so that decode pulls what is
// before a cut while the rest is computed.
func (ch *Chooser) cutEnds(r *bindRequest, v *snapshot, chosen *cost.Terms, prefill, decode int, now time.Time) []int {
	from, to, c := v.prefill[prefill], v.decode[decode], &v.candidates.Prefill[prefill]
	if r.pieces == 0 || !connector.TakesPieces(from, to) || c.Remote.Tokens > c.Cached.GPU || ch.pieceLosses.Factor(from.ID(), now) != 1 {
		return nil
	}
	ends := ch.Cost.Cuts(&v.candidates, prefill, decode, r.req.PromptTokens, blockTokens(from, to), ch.spare(r, chosen))
	for len(ends) > 0 && ends[len(ends)-1] > r.certain {
		ends = ends[:len(ends)-1]
	}
	return ends
}

// spare is how long the transfer of a request's KV may take without the client waiting for it: where prefill says
// the first token, and the second one is due within the objective for gaps all the same.
func (ch *Chooser) spare(r *bindRequest, chosen *cost.Terms) time.Duration {
	if !chosen.FirstFromPrefill {
		return 0
	}
	_, itl := ch.Config.SLO(r.req, r.base)
	return ch.firstGap.Spare(ch.Cost.HandOff+chosen.KVRoom+chosen.Step, itl)
}

// pieceWork is what a piece of a prompt, which takes so long whole, is to the server that computes it.
func (ch *Chooser) pieceWork(c *cost.Candidate, end int, whole time.Duration) curve.Work {
	piece := ch.Cost.PieceTime(c, end)
	return curve.Work{Tokens: end, Computed: max(1, end-c.Cached.GPU), Estimate: piece, Shared: cost.Duration(c.Prefill.Fixed()), Rest: max(0, whole-piece)}
}

// keepBegun gives a snapshot what the servers of a request hold of it since its prefill began,
// whether their events have come or not. What is left of it is expected there for others (predictCached),
// and nobody computes it before the request itself.
func (v *snapshot) keepBegun(begun *begunPrefill) {
	if p := cost.IndexOf(v.candidates.Prefill, begun.prefill); p >= 0 {
		held := &v.candidates.Prefill[p].Cached
		held.GPU, held.Pending = max(held.Confirmed(), begun.tokens), 0
	}
	if d := cost.IndexOf(v.candidates.Decode, begun.decode); d >= 0 {
		held := &v.candidates.Decode[d].Cached
		held.GPU = max(held.GPU, begun.tokens)
		held.Pending = min(held.Pending, held.GPU-begun.tokens)
	}
}

// claimRest claims the prefill server of a request whose prefill has begun, for the next piece or
// for all that is left. Decode's place it has.
func (ch *Chooser) claimRest(r *bindRequest, v *snapshot, chosen cost.Alternative, now time.Time) (b *binding, refusedBy string) {
	p, d := cost.IndexOf(v.candidates.Prefill, chosen.Prefill), cost.IndexOf(v.candidates.Decode, chosen.Decode)
	b = &binding{chosen: chosen, tokenBytes: ch.Cost.TokenBytes(&v.candidates.Decode[d])}
	if !ch.claimPrefill(r, v, b, p, d, now) {
		return nil, chosen.Prefill
	}
	b.prediction = ch.predictCached(r, b, v.decode[d])
	return b, ""
}

// claimPrefill claims the prefill server of a pair, for a piece of the prompt or for all of it that
// is left; false: it refused.
func (ch *Chooser) claimPrefill(r *bindRequest, v *snapshot, b *binding, prefill, decode int, now time.Time) bool {
	c := &v.candidates.Prefill[prefill]
	if b.fetch.from != nil {
		before := *c
		c.Remote = cost.Remote{}
		b.fetch.upTo = ch.pieceEnd(r, v, prefill, decode, now)
		*c = before.AfterFetch()
		defer func() { *c = before }()
	}
	work := prefillWork(r, c, b.chosen.Terms.Prefill)
	if b.upTo = ch.pieceEnd(r, v, prefill, decode, now); b.upTo > 0 {
		work = ch.pieceWork(c, b.upTo, work.Estimate-b.fetch.takes)
		work.Estimate += b.fetch.takes
	} else if ends := ch.cutEnds(r, v, &b.chosen.Terms, prefill, decode, now); len(ends) > 0 && ch.claimCuts(v, b, prefill, ends, work, now) {
		return true
	}
	lease, err := v.prefill[prefill].Claim(pools.Prefill, work, v.ignoreBreakers || v.prefillPanic, now)
	if err != nil {
		return false
	}
	b.prefill = lease
	return true
}

// claimCuts claims a prefill server for a prompt that is cut: for what is before the first cut, and for each part
// behind one. False: it refused one of them.
func (ch *Chooser) claimCuts(v *snapshot, b *binding, prefill int, ends []int, whole curve.Work, now time.Time) bool {
	server, ignoreBreakers, c := v.prefill[prefill], v.ignoreBreakers || v.prefillPanic, &v.candidates.Prefill[prefill]
	work := ch.pieceWork(c, ends[0], 0)
	work.Estimate += b.fetch.takes
	lease, err := server.Claim(pools.Prefill, work, ignoreBreakers, now)
	if err != nil {
		return false
	}
	b.prefill, b.upTo = lease, ends[0]
	for i, from := range ends {
		part, upTo := whole, 0
		part.Estimate -= b.fetch.takes // before the first one
		if i+1 < len(ends) {
			upTo = ends[i+1]
			part = ch.pieceWork(c, upTo, 0)
		}
		before := ch.pieceWork(c, from, 0)
		lease, err := server.Claim(pools.Prefill, curve.Work{
			Tokens: part.Tokens - from, Computed: max(1, part.Computed-before.Computed),
			Estimate: max(0, part.Estimate-before.Estimate) + before.Shared, Shared: before.Shared,
		}, ignoreBreakers, now)
		if err != nil {
			b.release()
			b.prefill, b.upTo, b.behindCuts = nil, 0, nil
			return false
		}
		b.behindCuts = append(b.behindCuts, behindCut{upTo, lease})
	}
	return true
}

// claimTurn claims the servers of a request whose turn it is, as far as it has none.
func (ch *Chooser) claimTurn(r *bindRequest, v *snapshot, chosen cost.Alternative, demand *cost.Demand, now time.Time) (b *binding, refusedBy string) {
	if r.begun != nil {
		return ch.claimRest(r, v, chosen, now)
	}
	return ch.claim(r, v, chosen, demand, now)
}

// errRestRefused says that the server on which a prefill began takes no more of it.
var errRestRefused = errors.New("the server on which the prefill began takes no more of it")

// BindRest waits for the turn of what is left of a prompt, and claims the prefill server on which
// it began. Errors: Bind's.
func (b *Binder) BindRest(ctx context.Context, r *bindRequest) (rest *binding, err error) {
	ctx, span := spans.Start(ctx, b.Tracer, "choose")
	defer func() { spans.End(span, err) }()
	start := time.Now()
	defer func() { r.waited += time.Since(start) }()
	if rest, err = b.bindLate(ctx, r, start); errors.Is(err, errBindNow) {
		rest, err = b.claimPair(r, r.begun.prefill, r.begun.decode)
	}
	if errors.Is(err, errBindNow) {
		return nil, errRestRefused
	}
	return rest, err
}

// pieceLegs sends the legs of pieces: those of a pair, and of a decode server that serves a request
// alone.
type pieceLegs struct{ *Orchestrator }

// prefillPieces prefills all of a prompt but what its last leg is to compute.
func (o pieceLegs) prefillPieces(ctx context.Context, st *requestState, b *binding) *LegError {
	defer func() { st.bind.begun = nil }()
	for b.upTo > 0 {
		if failed := o.prefillPiece(ctx, st, b); failed != nil {
			b.releaseBehindCuts()
			return failed
		}
		if len(b.behindCuts) > 0 { // what is next has its place already
			b.prefill, b.upTo, b.behindCuts = b.behindCuts[0].prefill, b.behindCuts[0].upTo, b.behindCuts[1:]
			continue
		}
		st.bind.begun = &begunPrefill{prefill: b.chosen.Prefill, decode: b.chosen.Decode, tokens: b.upTo}
		rest, err := o.Binder.BindRest(ctx, &st.bind)
		if err != nil {
			failed := &LegError{Leg: PrefillLeg, Server: b.chosen.Prefill, Kind: Unready, Err: err}
			if ctx.Err() != nil {
				failed.Kind, failed.Err = Gone, context.Cause(ctx)
			}
			st.retryWithoutBudget = true // it drains, sleeps or is gone, and the request is not why
			return failed
		}
		b.prefill, b.behindCuts, b.upTo, b.prediction = rest.prefill, rest.behindCuts, rest.upTo, rest.prediction
	}
	return nil
}

// prefillPiece sends the prefill leg of the next piece, and has decode pull it.
func (o pieceLegs) prefillPiece(ctx context.Context, st *requestState, b *binding) (failed *LegError) {
	server, start := b.prefill.Server(), time.Now()
	t := connector.NewPiece(st.req.Body, st.bind.prefix.tokens.IDs[:b.upTo], server, b.decode.Server())
	h := t.Handoff()
	legCtx, span := spans.StartLeg(ctx, o.Tracer, "prefill", server.ID(), t.ID)
	span.SetPiece(b.cut.done+1, b.upTo)
	defer func() { endLegSpan(span, failed) }()
	defer b.prefill.Release()
	answer, failed := o.sendPrefill(legCtx, st, b, t, api.Completions, firstSaid{})
	if failed != nil {
		return failed
	}
	h.RecordPrefill(t, answer, time.Now())
	coverage := h.Coverage()
	if coverage.Tokens > 0 {
		b.prefill.ReleasePrefilled(coverage.Tokens-coverage.Cached.Tokens, coverage.Cached.Tokens, 0)
	}
	b.prefill.RecordResult(nil)
	if len(b.behindCuts) == 0 { // else the rest is as good as there
		b.prediction.comeTrue()
	}
	if b.cut.done > 0 {
		o.judgePiece(b, server, coverage.Cached)
	}
	b.cut.computed += coverage.Tokens - coverage.Cached.Tokens
	b.choice.Measured.Prefill += time.Since(start)
	if failed = o.checkHost(st, t, h); failed != nil {
		return failed
	}
	o.pullPiece(ctx, st, b, h)
	b.cut.done, b.cut.tokens = b.cut.done+1, b.upTo
	return nil
}

// judgePiece holds what a prefill found cached against the pieces before it: one that was evicted
// was computed in vain.
func (o pieceLegs) judgePiece(b *binding, server *pools.Server, cached api.Count) {
	kept := cached.Known && cached.Tokens >= b.cut.tokens-server.BlockTokens()
	o.Binder.pieceLosses.Observe(server.ID(), kept, time.Now())
	outcome := "kept"
	if !kept {
		outcome = "lost"
	}
	o.Metrics.pieces.WithLabelValues(outcome).Inc()
}

// pullPiece has decode pull a piece behind those before it, in a goroutine that ends with the
// request at the latest. One that fails is pulled with the whole prompt. Others find the links of the two servers taken
// meanwhile.
func (o pieceLegs) pullPiece(ctx context.Context, st *requestState, b *binding, h *connector.Handoff) {
	if !h.Kept {
		return
	}
	before, pulled, server := b.cut.pulled, make(chan struct{}), b.decode.Server()
	bytes := float64(o.Binder.lacking(b, b.upTo)) * b.tokenBytes
	b.cut.pulled = pulled
	ctx, cancel := context.WithTimeoutCause(ctx, o.Binder.Config.HandoffAge, errSilent) // waits for those before included
	piece := &requestState{req: st.req, bind: bindRequest{req: st.req}}                 // its own: the attempts go on meanwhile
	o.legs.Go(func() {
		defer cancel()
		defer close(pulled)
		defer o.survivePanic("the pull of a piece", piece.req.ID)
		if before != nil {
			<-before
		}
		transfer := o.Binder.Links.Begin(linkEndOf(h.From), linkEndOf(server), bytes, time.Now())
		b.expected.Less(bytes)
		defer func() { transfer.End(time.Now()) }()
		o.Metrics.pieces.WithLabelValues(o.sendPull(ctx, piece, server, h)).Inc()
	})
}

// sendPull is the decode leg of a piece.
func (o pieceLegs) sendPull(ctx context.Context, st *requestState, server *pools.Server, h *connector.Handoff) (outcome string) {
	failed := o.sendRead(ctx, st, server, h, "piece")
	if failed == nil {
		return "pulled"
	}
	o.Log.Warn("decode did not pull a piece of a prompt", "request_id", st.req.ID, "server", server.ID(), "error", failed.Error())
	return "not_pulled"
}

// sendRead is the leg of a server that reads KV which another one keeps for it into its prefix cache.
func (o *Orchestrator) sendRead(ctx context.Context, st *requestState, server *pools.Server, h *connector.Handoff, kind string) (failed *LegError) {
	ctx, span := spans.StartLeg(ctx, o.Tracer, "decode", server.ID(), h.Attempt)
	span.SetKind(kind)
	_, _, failed = o.sendWhole(ctx, o.Binder.Config.HandoffAge, DecodeLeg, server, st, api.Completions.Path, h.Attempt, h.Leg)
	endLegSpan(span, failed)
	if failed != nil {
		o.Metrics.countStranded(h)
	}
	return failed
}

// awaitPulled waits until decode has the pieces that it was to pull: it would pull twice what it is
// asked for meanwhile.
func (b *binding) awaitPulled(ctx context.Context) {
	if b.cut.pulled == nil {
		return
	}
	select {
	case <-b.cut.pulled:
	case <-ctx.Done():
	}
}

// withoutPieces is prefill's answer to the last leg as it would be had the prompt not been cut: what
// the pieces before it computed was not cached. found is what that leg found.
func (b *binding) withoutPieces(answer api.Answer) (whole api.Answer, found api.Count) {
	if b.cut.done == 0 {
		return answer, found
	}
	if usage, _ := answer.Usage(); usage.Cached.Known {
		return answer.WithCached(max(0, usage.Cached.Tokens-b.cut.computed)), usage.Cached
	}
	return answer, found
}
