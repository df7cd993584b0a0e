package pd

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// modelQueue is the waiting requests of one base model, and its servers as they were looked at
// last. It belongs to who decides.
type modelQueue struct {
	d          *Decider
	base       string
	order      *order.Order
	waiting    map[int64]*waiter
	arrivals   []*waiter // since the last look
	departures []*waiter // likewise
	next       int64     // ID of a ticket
	returns    queue.ReturnTimes

	snapshot  snapshot
	known     knownServers    // that the snapshot is taken of
	were      []*pools.Server // in the snapshot before: prefill's, and behind them decode's
	applied   *waiter         // whose request the snapshot is turned to; nil: none's
	support   curve.Support   // of the snapshot, if it was asked for
	supports  bool            // it was
	look      int64           // number of the look
	servers   order.Servers
	scratch   []*order.Ticket // some that wait
	spare     order.Ticket    // its slices are memory for the next request that comes
	reviewed  order.Ticket    // of the last request that waited, for the review of its choice
	repriced  time.Time       // when stale prices were renewed last
	forecast  time.Time       // when it was last forecast which of those that wait do so in vain
	predicted []*prediction   // of requests that went, and that may not have entered them yet
}

func newModelQueue(d *Decider, base string) *modelQueue {
	q := &modelQueue{d: d, base: base, order: order.New(d.cfg), waiting: make(map[int64]*waiter)}
	q.servers.Renew = func(t *order.Ticket) {
		q.enterPredictions()
		q.priceRequest(q.waiting[t.ID], d.origin.Add(q.servers.Now))
	}
	return q
}

// enterPredictions makes what was predicted of requests that went count for those that are priced from now on.
func (q *modelQueue) enterPredictions() {
	for _, p := range q.predicted {
		p.enter()
	}
	clear(q.predicted)
	q.predicted = q.predicted[:0]
}

// errUndecided ends a wait that came to nothing by a fault of this program.
var errUndecided = fmt.Errorf("the decider failed: %w", errBindNow)

// hasWork reports whether a look can change anything.
func (q *modelQueue) hasWork() bool { return len(q.waiting)+len(q.arrivals)+len(q.departures) > 0 }

// decideOrGiveUp is decide; a panic in it costs waiting requests their turn, and no more: it
// is false then, and they are bound at once.
func (q *modelQueue) decideOrGiveUp(now time.Time) (ok bool) {
	defer func() {
		if p := recover(); p != nil {
			q.d.log.Error("the decider panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			for _, w := range append(slices.Collect(maps.Values(q.waiting)), q.arrivals...) {
				w.complete(bindResult{err: errUndecided})
			}
		}
	}()
	q.decide(now)
	return true
}

// decide takes in arrivals, lets departures go, and binds the request whose turn it is.
func (q *modelQueue) decide(now time.Time) {
	for _, w := range q.departures {
		q.forget(w)
	}
	q.departures = nil
	q.d.ch.Metrics.evaluations.Inc()
	q.look++
	q.enterPredictions()
	q.refresh(now)
	others := len(q.waiting) > 0
	alone := !others && len(q.arrivals) == 1
	for _, w := range q.arrivals {
		q.enter(w, alone, now)
	}
	clear(q.arrivals)
	q.arrivals = q.arrivals[:0]
	if others { // those that came now are priced
		q.renewPrices(now)
		q.giveUp(now)
	}
	for {
		turn, ok := q.order.Next(&q.servers)
		if !ok {
			return
		}
		if w := q.waiting[turn.Ticket.ID]; q.claimTurn(w, turn, now) {
			delete(q.waiting, turn.Ticket.ID)
			q.spare.TakeMemory(&w.ticket)
		} else {
			q.order.UndoTurn(turn)
		}
		if len(q.waiting) > 0 {
			q.priceServers(now)
		}
	}
}

// refresh takes a new snapshot of the servers.
func (q *modelQueue) refresh(now time.Time) {
	q.were = append(append(q.were[:0], q.snapshot.prefill...), q.snapshot.decode...)
	prefill, decode := q.were[:len(q.snapshot.prefill)], q.were[len(q.snapshot.prefill):]
	q.d.ch.retakeSnapshot(&q.snapshot, &q.known, q.base, q.base, now)
	q.applied, q.supports = nil, false
	q.priceServers(now)
	same := func(a, b []*pools.Server) bool {
		return slices.EqualFunc(a, b, func(a, b *pools.Server) bool { return a.ID() == b.ID() })
	}
	if same(prefill, q.snapshot.prefill) && same(decode, q.snapshot.decode) {
		return
	}
	q.order.ForgetServers()
	for _, w := range q.waiting { // their slices are of other servers
		q.d.ch.applyMatched(w.request, &q.snapshot, now)
		q.priceMatched(w, now)
		q.order.Update(&w.ticket, q.servers.Links)
	}
}

// forget lets go one that has left, if it was let in.
func (q *modelQueue) forget(w *waiter) {
	if q.waiting[w.ticket.ID] != w {
		return
	}
	if w.state.Load() == leftLate {
		q.d.observeMiss(w)
	}
	q.order.Remove(&w.ticket)
	delete(q.waiting, w.ticket.ID)
}

// enter lets a request wait, or refuses it at once where no server can serve it or its
// turn will not come in time. One that comes alone need not wait where a server is free.
func (q *modelQueue) enter(w *waiter, alone bool, now time.Time) {
	q.next++
	w.ticket.TakeMemory(&q.spare)
	w.ticket.ID, w.ticket.Arrived = q.next, w.request.arrived.Sub(q.d.origin)
	w.ticket.Class, w.ticket.Tenant = w.request.req.Class, w.request.req.Tenant
	q.priceRequest(w, now)
	if !q.servers.Servable(&w.ticket) {
		w.complete(bindResult{err: q.snapshot.missing()})
		return
	}
	w.margin = &q.d.longMargin
	if w.request.begun != nil { // it was let in before
		q.order.Add(&w.ticket, q.servers.Links)
		q.waiting[q.next] = w
		return
	}
	if alone && q.goAtOnce(w, now) {
		return
	}
	displaced, err := q.admit(w, now)
	if err != nil {
		w.complete(bindResult{err: err})
		return
	}
	q.waiting[q.next] = w
	for _, t := range displaced {
		q.d.observeGivenUp(q.waiting[t.ID])
		q.waiting[t.ID].complete(bindResult{err: queue.ErrDisplaced})
		delete(q.waiting, t.ID)
	}
}

// goAtOnce binds a request that has come while no other waits, unless it would have to. It is false for one with a
// deadline too, whose turn is to be promised.
func (q *modelQueue) goAtOnce(w *waiter, now time.Time) (gone bool) {
	if !w.request.req.Deadline.IsZero() {
		return false
	}
	turn, ok := q.order.NextAlone(&w.ticket, &q.servers)
	if !ok {
		return false
	}
	w.entered = now
	if q.claimTurn(w, turn, now) {
		q.spare.TakeMemory(&w.ticket)
		return true
	}
	w.ticket.Latest = w.request.arrived.Add(q.d.maxWait).Sub(q.d.origin)
	q.order.UndoTurn(turn)
	q.waiting[w.ticket.ID] = w
	q.priceServers(now)
	return true
}

// admit says which requests give way to a new one, or why it is not let in.
func (q *modelQueue) admit(w *waiter, now time.Time) (displaced []*order.Ticket, err error) {
	limit := q.latest(w)
	promises := errors.Is(limit.Late, queue.ErrDeadline)
	if promises {
		w.margin, w.ticket.Promised = &q.d.waitMargin, true
	}
	forecast := order.Forecast{Margin: w.margin.Bound, Supported: q.supportedOf, Promises: promises}
	w.ticket.Latest = limit.Until.Sub(q.d.origin)
	wait, displaced, ok := q.order.Admit(&w.ticket, &q.servers, forecast)
	if !ok && promises && q.d.ch.takeProbe(w.request, now) {
		w.ticket.Latest = w.request.arrived.Add(q.d.maxWait).Sub(q.d.origin)
		wait, displaced, ok = q.order.Admit(&w.ticket, &q.servers, forecast)
	}
	if !ok {
		excess := q.servers.Now + w.margin.Bound(wait) - w.ticket.Latest
		return nil, q.refusal(w, limit.Late, excess, now)
	}
	w.entered, w.predictedWait = now, wait
	return displaced, nil
}

// refusal is what a request is told that would wait in vain, by so much too long.
func (q *modelQueue) refusal(w *waiter, late error, excess time.Duration, now time.Time) error {
	return &queue.Refusal{Late: late, Return: q.returns.Next(excess, q.order.ServiceTime(&w.ticket), now)}
}

// supported is what the servers have shown of how well prefills are predicted. Most looks do not ask for it, which is to
// look at each server.
func (q *modelQueue) supported() *curve.Support {
	if !q.supports {
		q.support, q.supports = q.snapshot.candidates.Support(), true
	}
	return &q.support
}

// supportedOf is how many of so many predicted seconds, of so many works, are supported.
func (q *modelQueue) supportedOf(seconds float64, works int) float64 {
	return q.supported().Of(seconds, works)
}

// How long those that only max-wait bounds wait in vain once that shows.
const (
	forecastEvery = 500 * time.Millisecond // that it is asked, which looks at all that wait
	giveUpAfter   = 3 * time.Second        // that it has to show: steps of another batch are learned within some of them
	giveUpShare   = 0.9                    // of the wait that is predicted: who would have been served is not to be given up
)

// giveUp refuses requests that wait in vain, though they were let in: what a full batch of decode takes, by which KV
// room comes free, shows only once they wait.
func (q *modelQueue) giveUp(now time.Time) {
	if since := now.Sub(q.forecast); since >= 0 && since < forecastEvery {
		return
	}
	q.forecast = now
	least := func(wait time.Duration) time.Duration {
		return time.Duration(giveUpShare * float64(min(wait, q.d.longMargin.Bound(wait))))
	}
	forecast := order.Forecast{Margin: least, Supported: q.supportedOf}
	for _, t := range q.order.GiveUp(&q.servers, forecast, giveUpAfter) {
		w := q.waiting[t.ID]
		delete(q.waiting, t.ID)
		w.complete(bindResult{err: q.refusal(w, queue.ErrTimeout, t.By, now)})
	}
}

// latest is until when a request's prefill must begin.
func (q *modelQueue) latest(w *waiter) queue.Limit {
	begin := w.request.req.Deadline
	if !begin.IsZero() {
		rest := cost.Duration(q.supported().Seconds(q.servers.LeastTTFT(&w.ticket)))
		begin = begin.Add(-q.d.ch.ttftMargin.Prompt.Bound(rest))
	}
	return queue.LimitedBy(begin, w.request.arrived.Add(q.d.maxWait), queue.ErrTimeout)
}

// repriceEvery is how often stale prices are renewed. A busy gateway looks several times within a millisecond, and
// engines do not say so often what they hold.
const repriceEvery = time.Millisecond

// renewPrices prices some requests anew that wait, and lets go those that no server can serve any more.
func (q *modelQueue) renewPrices(now time.Time) {
	if since := now.Sub(q.repriced); since >= 0 && since < repriceEvery {
		return
	}
	q.repriced = now
	q.scratch = q.order.Stale(order.RepricedPerLook, q.scratch[:0])
	for _, t := range q.scratch {
		w := q.waiting[t.ID]
		if w.look == q.look {
			continue
		}
		q.priceRequest(w, now)
		if !q.servers.Servable(t) {
			q.order.Remove(t)
			delete(q.waiting, t.ID)
			w.complete(bindResult{err: q.snapshot.missing()})
			continue
		}
		q.order.Update(t, q.servers.Links)
	}
	clear(q.scratch) // it keeps no request that has gone, with its prompt's ids
}

// priceServers takes over the state of the servers, after a look or a claim.
func (q *modelQueue) priceServers(now time.Time) {
	q.d.ch.Cost.PriceServers(&q.snapshot.candidates, &q.servers)
	q.servers.Gate, q.servers.Now = true, now.Sub(q.d.origin)
	q.servers.Start = order.Pair{
		Prefill: rand.IntN(max(1, len(q.servers.Prefill))),
		Decode:  rand.IntN(max(1, len(q.servers.Decode))),
	}
}

// priceRequest writes what a request costs on each server now.
func (q *modelQueue) priceRequest(w *waiter, now time.Time) {
	q.d.ch.applyRequest(w.request, &q.snapshot, now)
	q.applied, w.look = w, q.look
	q.priceMatched(w, now)
}

// priceMatched is priceRequest for a request that the snapshot is turned to.
func (q *modelQueue) priceMatched(w *waiter, now time.Time) {
	w.ticket.Outdated = false
	q.d.ch.Cost.PriceRequest(q.d.ch.demand(w.request, now), &q.snapshot.candidates, &w.ticket)
	if begun := w.request.begun; begun != nil {
		w.ticket.KeepTo(order.Pair{
			Prefill: cost.IndexOf(q.snapshot.candidates.Prefill, begun.prefill),
			Decode:  cost.IndexOf(q.snapshot.candidates.Decode, begun.decode),
		})
	}
}

// claimTurn claims the servers of a turn for its request and hands them over. It is false if a
// server refused; then the request waits on.
func (q *modelQueue) claimTurn(w *waiter, turn order.Turn, now time.Time) (gone bool) {
	if q.applied != w {
		q.d.ch.applyRequest(w.request, &q.snapshot, now)
		q.applied = w
	}
	turn.Pair = q.snapshot.candidates.Settle(&q.servers, &w.ticket, q.d.ch.home(w.request, now), turn.Pair, turn.Price)
	chosen := q.snapshot.candidates.Alternative(&q.servers, &w.ticket, turn.Pair, turn.Price)
	if q.late(w, &chosen, now) {
		w.complete(bindResult{err: queue.ErrDeadline})
		return true
	}
	demand := q.d.ch.demand(w.request, now)
	b, refusedBy := q.d.ch.claimTurn(w.request, &q.snapshot, chosen, &demand, now)
	if b == nil {
		q.snapshot.leaveOut(refusedBy)
		return false
	}
	if !w.state.CompareAndSwap(stillWaits, isBound) {
		b.undo()
		return true
	}
	defer func() { w.done <- bindResult{b: b} }() // also after a panic: it waits for nothing else
	q.predicted = append(q.predicted, b.prediction)
	q.d.ch.enterSeen(w.request)
	switch {
	case w.request.begun != nil: // why it has these servers was noted when it began
	case w.request.remote:
		q.d.ch.deadlineProbes.Observe(q.base, now)
	default:
		seen := q.snapshot            // with the servers as they were before
		if seen.candidates.AreFew() { // and are kept
			seen.candidates = seen.candidates.Clone(&b.candidates)
		}
		seen.candidates.RecordOrder(&q.servers, &b.candidates)
		q.d.ch.recordBinding(w.request, &seen, b, demand, q.review(w, &seen.candidates, &b.chosen, demand), now)
	}
	if len(q.waiting) > 0 && w.request.begun == nil {
		q.d.observeWait(w, max(w.predictedWait, q.order.Overtaken(&w.ticket)), now.Sub(w.entered)+chosen.Terms.Queue)
	}
	if len(q.waiting) <= 1 { // no other
		return true
	}
	q.updateLoad(turn.Pair, now)
	q.outdateSharers(w.request, b, turn.Pair.Prefill)
	return true
}

// review reviews the choice of a request by q.servers, which are of no use behind that. One that came alone has just been
// priced, one that waited not always.
func (q *modelQueue) review(w *waiter, among *cost.Candidates, chosen *cost.Alternative, demand cost.Demand) cost.Review {
	t := &w.ticket
	if len(q.waiting) > 0 {
		t = &q.reviewed
		t.Arrived = w.ticket.Arrived
		q.d.ch.Cost.PriceRequest(demand, among, t)
	}
	return among.Review(&q.servers, t, chosen)
}

// late reports whether it is too late for a request whose turn it is. One that comes in
// only now must be sure of its first token; one that was let in to wait is given up only
// where it is predicted to come too late.
func (q *modelQueue) late(w *waiter, chosen *cost.Alternative, now time.Time) bool {
	if !now.After(w.entered) {
		return q.d.ch.late(w.request, &q.snapshot.candidates, chosen, q.d.ch.ttftMargin.Bound(&chosen.Terms), now)
	}
	if !q.d.ch.late(w.request, &q.snapshot.candidates, chosen, chosen.Terms.TTFT(), now) {
		return false
	}
	q.d.observeGivenUp(w)
	return true
}

// updateLoad takes over what two servers are like with one request more.
func (q *modelQueue) updateLoad(pair order.Pair, now time.Time) {
	if pair.Prefill != order.Aggregated {
		q.snapshot.candidates.Prefill[pair.Prefill].SetLoad(candidateOf(q.snapshot.prefill[pair.Prefill], now))
	}
	q.snapshot.candidates.Decode[pair.Decode].SetLoad(candidateOf(q.snapshot.decode[pair.Decode], now))
}

// outdateSharers notes which waiting requests begin like one that was bound just now, as far as its
// servers are to hold more of them than they were known to: at the price of before they would go to
// other servers in the same look, and compute there what they may have here. They are priced anew
// when one is about to go, and not all of them now: a thousand that begin alike take as long as a
// fleet that is seen for the first time.
func (q *modelQueue) outdateSharers(bound *bindRequest, b *binding, prefill int) {
	if b.prediction == nil || b.prefill == nil {
		return
	}
	held, at := q.snapshot.candidates.Prefill[prefill].Cached.GPU, &q.snapshot.prefillFacts[prefill].spot // before it was bound
	q.scratch = q.order.All(q.scratch[:0])
	for _, t := range q.scratch {
		if t.Outdated {
			continue
		}
		if prefix := q.waiting[t.ID].request.prefix; prefix != nil {
			t.Outdated = prefix.extends(b.chosen.Prefill, at, bound.prefix, held)
		}
	}
	clear(q.scratch) // likewise
}

// nextLook is in how long the work ahead on a server will have worn off.
func (q *modelQueue) nextLook(now time.Time) time.Duration {
	soonest := time.Duration(math.MaxInt64)
	look := func(s *pools.Server, ahead time.Duration) {
		if in, ok := s.FallsTo(ahead, now); ok {
			soonest = min(soonest, in)
		}
	}
	for p, s := range q.snapshot.prefill {
		look(s, q.d.cfg.AheadOn(q.snapshot.candidates.Prefill[p].Prefill.Fixed()))
	}
	for _, s := range q.snapshot.decode {
		look(s, q.d.cfg.AheadOnDecode)
	}
	return max(soonest, time.Millisecond)
}
