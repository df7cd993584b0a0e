package order

import (
	"math"
	"slices"
)

// mayGo returns the best pair of a request if it is free, and the best that is free if one has
// been left free for long enough.
func (o *Order) mayGo(t *Ticket, s *Servers) (Pair, bool) {
	if o.goesBehindBest(t, s) {
		return Pair{}, false
	}
	awaited := o.awaitedCost(t, s)
	t.leaves = false
	if o.prefersAwaited(t, s, awaited) {
		o.recordAwaited(t, s)
		return Pair{}, false
	}
	pair, cost := o.bestFree(t, s)
	switch {
	case math.IsInf(cost, 1):
		if !math.IsInf(awaited, 1) {
			o.recordAwaited(t, s)
		}
		return Pair{}, false
	case !(awaited < cost) && !o.isBusyPairBetter(t, s, cost):
		return pair, true
	case !t.followed && s.firstStep(t, pair) <= t.declined:
		t.leaves = true
		return pair, true
	}
	if pair, cost = o.bestFreePair(t, s); !math.IsInf(cost, 1) && s.firstStep(t, pair)+o.delayToWaiting(t, pair.Prefill) <= o.patience(t, s) {
		t.leaves = true
		return pair, true
	}
	o.recordAwaited(t, s)
	return Pair{}, false
}

// goesBehindBest reports whether it is certain that a request may go to a free prefill server, and
// would go behind the best so far wherever that is: then its pair need not be found. Behind a request
// for which its free server is not the best of all stand many others that could go there.
func (o *Order) goesBehindBest(t *Ticket, s *Servers) bool {
	decode := o.freePair.Decode
	if math.IsInf(o.least, 1) || decode < 0 || !s.fitsPair(t, &s.Decode[decode]) {
		return false
	}
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) || t.rankOn(p) < o.least {
			return false
		}
	}
	price := o.price(t)
	cost := func(p int) float64 {
		return s.costOnPair(t, Pair{p, decode}, t.on(p), t.mostMissingOn(decode), at(t.DecodeReady, decode), price)
	}
	if o.isBestOfAll(t, s, price, cost(o.freePair.Prefill)) { // mostly: it is the cheapest of those that are free to another one
		return true
	}
	most := math.Inf(1)
	for _, p := range o.free {
		if decode != s.Prefill[p].Self {
			most = min(most, cost(p))
		}
	}
	return o.isBestOfAll(t, s, price, most)
}

// isBestOfAll reports whether it is certain that no busy server, and no decode server alone, would cost a request less than
// a free pair that costs so much.
func (o *Order) isBestOfAll(t *Ticket, s *Servers, price, cost float64) bool {
	return !math.IsInf(cost, 1) && cost <= o.leastAggregated(t, s) && !o.mayBusyCostLess(t, s, price, cost-s.HandOff-o.fastestDecode.leastCost(t))
}

// followShare is the part of its wait within which a request that follows another one must get its
// first decode step elsewhere. At 1 siblings that come at once would each compute their beginning as
// soon as the first one does, since that takes no longer than to wait for it; and the times that are
// compared are a few per cent off.
const followShare = 0.9

// patience is how long the first decode step may be away on a free prefill server that a request goes
// to, though waiting for a busy one costs it less: as long as it has left a free one, or as others
// have for that busy server since one of them went elsewhere. The latter makes another server
// hold what they share, at no more than the want of it has cost.
//
// One that has followed another request (Ticket.Follows) has not waited in vain. So what counts is what
// is left of its wait, with those that go first: the last of many siblings go where the wait ends
// sooner, and not all of them once they have waited for as long as computing takes. It leaves a free
// server for no longer than four times that all the same.
func (o *Order) patience(t *Ticket, s *Servers) float64 {
	if t.followed {
		return max(t.declined/4, followShare*(o.awaitedWork[t.awaited.Prefill]+s.firstStep(t, t.awaited.Pair)))
	}
	return max(t.declined, o.declinedFor[t.awaited.Prefill])
}

// delayToWaiting is what a request's prefill on a server costs those who wait, without the one
// who is yet to come: where many wait, a server that is free now is not spare.
func (o *Order) delayToWaiting(t *Ticket, p int) float64 {
	waiting := o.waitingPerServer - float64(len(o.free)-1)/float64(len(t.onPrefill))
	return (t.Weights.Price(max(0, waiting)) - t.Weights.Price(0)) * t.on(p).reference
}

// recordAwaited notes that a request waits for the busy pair that it awaits: its prefill goes there
// before those of all behind it. And that it leaves a free server that it could have.
func (o *Order) recordAwaited(t *Ticket, s *Servers) {
	p := t.awaited.Prefill
	o.awaitedWork[p] += t.awaited.work
	o.beginsIn[p] = o.awaitedWork[p] + s.Prefill[p].Ahead
	if slices.ContainsFunc(o.free, func(p int) bool { return !math.IsInf(t.on(p).prefill, 1) }) {
		t.isDeclining, o.isDeclinedFor[p] = true, true
	}
}

// mayStopDeclining says whether a free server could give a request its first decode step within its
// patience, as mayGo counts it but over the nearest link: where many have waited for long, and what
// others would pay keeps them from going, they need no search either.
func (o *Order) mayStopDeclining(t *Ticket, s *Servers) bool {
	if len(o.free) == 0 {
		return false
	}
	limit, step := o.patience(t, s), o.fastestDecode.StepSeconds(t)
	if t.leastPrefill+step > limit {
		return false
	}
	alone := !t.followed && t.leastAggregated+step-rounding <= t.declined
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		ready, _ := s.prefillSide(t, p, t.on(p), 0)
		first := ready + t.on(p).leastTransfer + step
		if first <= limit && (alone || !t.followed && first-rounding <= t.declined || first-rounding+o.delayToWaiting(t, p) <= limit) {
			return true
		}
	}
	return false
}
