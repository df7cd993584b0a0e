package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/curve"
)

var lateBinding = &Policy{
	Name: "tandem-late", Kind: Ours, OneDecider: true,
	Source: "requests wait at the gateway (one decider) until their best prefill server is about to be free; shortest first, with ageing",
	New:    func(s *Scenario, _ *rand.Rand) any { return newLateBinder(s, true) },
}

var latePairs = &Policy{
	Name: "tandem-late-pairs", Kind: Ours, OneDecider: true,
	Source: "tandem-late where decode servers never compute prompts",
	New:    func(s *Scenario, _ *rand.Rand) any { return newLateBinder(s, false) },
}

var pieces = &Policy{
	Name: "tandem-pieces", Kind: Ours, OneDecider: true,
	Source: "tandem-late which prefills long prompts in pieces, of which decode pulls one while the next is computed; prefill fetches KV that decode holds where that is faster than computing it; where much KV is lost before it comes back half of the decode servers are spared new prompts; what decode computes itself is cut so that its streams go on between two pieces",
	New:    func(s *Scenario, _ *rand.Rand) any { return newPieceBinder(s) },
}

var byDefault = &Policy{
	Name: "tandem", Kind: Ours, OneDecider: true, FirstFromPrefill: true,
	Source: "what the gateway does unless told otherwise: tandem-pieces whose clients have the first token from prefill, where engines continue behind it (serve --first-token prefill)",
	New:    func(s *Scenario, _ *rand.Rand) any { return newPieceBinder(s) },
}

var unprotected = &Policy{
	Name: "tandem-pieces-unprotected", Kind: Ours, OneDecider: true,
	Source: "tandem-pieces which spares no decode server new prompts (--protect-kv=false)",
	New: func(s *Scenario, _ *rand.Rand) any {
		b := newPieceBinder(s)
		b.protects = false
		return b
	},
}

// gaps are tandem-pieces with other objectives for gaps than the one that requests are judged by: what
// a longer one is worth to those that wait, and costs the streams.
var gaps = []*Policy{piecesWithGap(0.05), piecesWithGap(0.2), piecesWithGap(0.3), piecesWithGap(1)}

func piecesWithGap(seconds float64) *Policy {
	return &Policy{
		Name: fmt.Sprintf("tandem-gap-%gms", 1000*seconds), Kind: Ours, OneDecider: true,
		Source: fmt.Sprintf("tandem-pieces which lets streams stand still for up to %g s (itl-slo, decode-pieces)", seconds),
		New: func(s *Scenario, _ *rand.Rand) any {
			b := newPieceBinder(s)
			b.gap = seconds
			return b
		},
	}
}

var lateEach = &Policy{
	Name: "tandem-late-each", Kind: Ours,
	Source: "tandem-late where every gateway replica decides for its own requests",
	New:    func(s *Scenario, _ *rand.Rand) any { return newLateBinder(s, true) },
}

var throughput = &Policy{
	Name: "tandem-throughput", Kind: Ours, OneDecider: true,
	Source: "tandem-late with the objective of throughput: it knows the objective of the first token, and serves last the requests that cannot meet it any more",
	New: func(s *Scenario, _ *rand.Rand) any {
		b := newLateBinder(s, true)
		b.serves = order.Throughput
		return b
	},
}

var unseenStore = &Policy{
	Name: "tandem-late-unseen-store", Kind: Ours, OneDecider: true,
	Source: "tandem-late which knows nothing of what a shared store has (servers without the label tandem/store)",
	New: func(s *Scenario, _ *rand.Rand) any {
		b := newLateBinder(s, true)
		b.unseenStore = true
		return b
	},
}

var shares = &Policy{
	Name: "tandem-shares", Kind: Ours, OneDecider: true,
	Source: "tandem-late, which knows which hardware is to prefill which lengths (serve --hardware)",
	New: func(s *Scenario, _ *rand.Rand) any {
		b := newLateBinder(s, true)
		b.updater = newShareUpdater(s)
		return b
	},
}

// lateBinder asks Order, and keeps its tickets true.
type lateBinder struct {
	*fleet
	pieces      cost.Pieces
	updater     *shareUpdater // nil: hardware has no variants
	order       *order.Order
	jobs        map[int64]*job
	refreshedAt float64 // when tickets were looked up last
	stale       []*order.Ticket
}

func newLateBinder(s *Scenario, aggregated bool) *lateBinder {
	f := newFleet(s, aggregated)
	f.servers.Gate = true
	return &lateBinder{fleet: f, order: order.New(order.DefaultConfig()), jobs: make(map[int64]*job), refreshedAt: -1}
}

// newPieceBinder is that of tandem-pieces.
func newPieceBinder(s *Scenario) *lateBinder {
	b := newLateBinder(s, true)
	b.pieces, b.cuts, b.fetches, b.protects = cost.DefaultPieces, true, true, true
	return b
}

func (b *lateBinder) Add(v *View, j *job) {
	b.refresh(v)
	if b.updater != nil {
		b.updater.recordArrival(v, j)
	}
	b.jobs[int64(j.id)] = j
	t := new(order.Ticket)
	b.price(v, j, t)
	b.order.Add(t, b.servers.Links)
}

func (b *lateBinder) Next(v *View) (*job, bool) {
	if b.order.Len() == 0 {
		return nil, false
	}
	if b.updater != nil {
		b.updater.plan(v, &b.field)
	}
	b.refresh(v)
	if b.refreshedAt != v.now {
		b.refreshedAt = v.now
		b.refreshStale(v)
	}
	turn, ok := b.order.Next(&b.servers)
	if !ok {
		return nil, false
	}
	j := b.jobs[turn.Ticket.ID]
	delete(b.jobs, turn.Ticket.ID)
	j.pair = turn.Pair
	b.updateCached(v, j)
	b.enterSeen(v, j)
	if j.pair.Prefill != Aggregated {
		if j.pieces == 0 && !v.scenario().Overlap {
			terms := b.servers.Terms(turn.Ticket, turn.Pair, 1)
			b.expect(v, j, terms.Ready+terms.Ahead+terms.Prefill)
		}
		b.takeFetch(v, j)
		j.upTo = b.pieces.End(&b.field.Prefill[j.pair.Prefill], j.req.Prompt, blockTokens)
		if j.cuts = nil; j.upTo == j.req.Prompt && b.pieces > 0 && !v.scenario().Overlap {
			j.cuts = b.model.Cuts(&b.field, j.pair.Prefill, j.pair.Decode, j.req.Prompt, blockTokens, b.spare(v, j))
		}
		return j, true
	}
	demand := b.demand(v)
	j.decodePieces = b.model.DecodePieces(&demand, &b.field.Decode[j.pair.Decode])
	j.estimate.aggregated = turn.Ticket.Aggregated[j.pair.Decode]
	return j, true
}

// refreshStale looks up some of those that wait.
func (b *lateBinder) refreshStale(v *View) {
	b.stale = b.order.Stale(order.RepricedPerLook, b.stale[:0])
	for _, t := range b.stale {
		b.price(v, b.jobs[t.ID], t)
		b.order.Update(t, b.servers.Links)
	}
}

// Prefilled reports to the share updater, too.
func (b *lateBinder) Prefilled(v *View, j *job) {
	b.fleet.Prefilled(v, j)
	if b.updater != nil {
		b.updater.recordPrefilled(v, j)
	}
}

// Wake is when the prefills ahead of a server will have fallen so far that the next
// request may go to it, or the next look if a prefill server is free.
func (b *lateBinder) Wake(v *View) (float64, bool) {
	if b.order.Len() == 0 {
		return 0, false
	}
	soonest, cfg := math.Inf(1), order.DefaultConfig()
	if slices.ContainsFunc(b.servers.Prefill, func(p order.PrefillState) bool { return p.Ahead <= cfg.AheadOn(p.PerStep).Seconds() }) {
		soonest = order.LookInterval.Seconds()
	}
	falls := func(work *curve.Backlog, ahead time.Duration) {
		if in, ok := work.FallsTo(ahead, clockTime(v.now)); ok && in > 0 {
			soonest = min(soonest, in.Seconds())
		}
	}
	for p := range v.gateway.account.prefill {
		falls(&v.gateway.account.prefill[p].work, cfg.AheadOn(b.servers.Prefill[p].PerStep))
	}
	for d := range v.gateway.account.decode {
		falls(&v.gateway.account.decode[d].prompts, cfg.AheadOnDecode)
	}
	return v.now + soonest, !math.IsInf(soonest, 1)
}
