package order

import (
	"math"
	"slices"
)

// awaitedCost is what the pair that a request was last seen to wait for costs it, with what goes
// first there: infinite where it may not wait for that any more.
func (o *Order) awaitedCost(t *Ticket, s *Servers) float64 {
	p, d := t.awaited.Prefill, t.awaited.Decode
	if p == Aggregated || o.isFreeTo(t, p, s) || !s.fitsPair(t, &s.Decode[d]) || !s.mayHave(t, &t.awaited) {
		return math.Inf(1)
	}
	return o.hold(t, p, s) + s.pairCost(t, &t.awaited, o.price(t))
}

// prefersAwaited says whether the pair that a request was last seen to wait for, at a cost, is
// better than all that are free: most wait for the same one as before, and need no search.
func (o *Order) prefersAwaited(t *Ticket, s *Servers, cost float64) bool {
	if !(cost < o.leastAggregated(t, s)) || o.mayStopDeclining(t, s) {
		return false
	}
	if len(o.free) == 0 {
		return true
	}
	price, decoding := o.price(t), o.fastestDecode.leastCost(t)
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer+decoding <= cost {
			return false
		}
	}
	return true
}

// isBusyPairBetter says whether a server that is not free costs less than limit, with what goes
// first there. The request awaits it then.
func (o *Order) isBusyPairBetter(t *Ticket, s *Servers, limit float64) (found bool) {
	price, decoding := o.price(t), o.fastestDecode.leastCost(t)
	least := o.leastBehind(t, s, price, decoding)
	follows := slices.ContainsFunc(o.free, func(p int) bool { return t.awaitsRest(p, &s.Prefill[p]) })
	factor := o.waitFactor(t)
	if !follows && (factor*o.soonest+least >= limit || !o.mayBusyCostLess(t, s, price, limit-s.HandOff-decoding)) {
		return false
	}
	best := Pair{}
	for _, p := range o.busy {
		if factor*o.beginsIn[p]+least >= limit {
			continue // it need not be priced
		}
		if o.isFreeTo(t, p, s) {
			continue
		}
		hold := o.hold(t, p, s)
		if _, half := s.prefillSide(t, p, t.on(p), price); hold+half+t.on(p).leastTransfer+decoding >= limit {
			continue
		}
		if d, cost := s.bestFrom(t, p, t.on(p), price, limit-hold); hold+cost < limit {
			best, limit, found = Pair{p, d}, hold+cost, true
		}
	}
	if found {
		t.awaited = t.costOfPair(best)
	}
	return found
}

// mayBusyCostLess says whether a server that is not free to any request could cost one less than limit
// with what goes first there and, where that is known, those that wait for it; the second leg and decode's part are
// left out.
func (o *Order) mayBusyCostLess(t *Ticket, s *Servers, price, limit float64) bool {
	behind, factor := t.behindAt(price), o.waitFactor(t)
	for i, p := range behind.servers {
		seconds := behind.seconds[i]
		if seconds >= limit || o.isFree[p] {
			continue
		}
		if seconds += factor * o.beginsIn[p]; seconds < limit && seconds+behind.prefill[i]*s.delayed(&s.Prefill[p]) < limit {
			return true
		}
	}
	if factor*o.soonest+behind.others >= limit {
		return false
	}
	o.soonest = o.soonestBegin()
	return factor*o.soonest+behind.others < limit
}

// leastBehind is less than any pair costs a request at a price behind the work ahead of its prefill
// server.
func (o *Order) leastBehind(t *Ticket, s *Servers, price, decoding float64) float64 {
	return s.HandOff + t.leastPrefill + t.leastReference + (price-1)*t.leastBatch + decoding - rounding
}

// hold is what it costs to wait for a busy server beyond the work ahead of it: see Next.
func (o *Order) hold(t *Ticket, p int, s *Servers) float64 {
	factor := o.waitFactor(t)
	return factor*o.awaitedWork[p] + (factor-1)*s.Prefill[p].Ahead
}

// waitFactor is how many times a predicted wait for a busy server counts: less where many wait, since a free server
// that one of them leaves is taken by another. What a request follows is computed there whoever goes first.
func (o *Order) waitFactor(t *Ticket) float64 {
	if t.followed {
		return 1
	}
	return 1 + o.cfg.WaitMargin/(1+o.waitingPerServer)
}
