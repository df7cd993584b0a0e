package order

import (
	"math"
)

// bestFree is the best of the pairs that a request could have now, and its cost:
// infinite if there is none.
func (o *Order) bestFree(t *Ticket, s *Servers) (Pair, float64) {
	pair, least := o.bestFreePair(t, s)
	if o.leastAggregated(t, s) >= least {
		return pair, least
	}
	if alone, cost := s.BestAggregated(t, o.cfg.AheadOnDecode.Seconds()); cost < least {
		return alone, cost
	}
	return pair, least
}

// bestFreePair is bestFree of those with a prefill server.
func (o *Order) bestFreePair(t *Ticket, s *Servers) (pair Pair, least float64) {
	price := o.price(t)
	bound := o.boundFree(t, s, price)
	least = bound.least
	found := false
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer+bound.decoding >= least {
			continue
		}
		d, cost := bound.best.Decode, bound.cost
		if p != bound.best.Prefill {
			d, cost = s.bestFrom(t, p, t.on(p), price, least)
		}
		if cost < least {
			pair, least, found = Pair{p, d}, cost, true
		}
	}
	if !found {
		return Pair{}, math.Inf(1)
	}
	o.freePair = pair
	return pair, least
}

// manyFree is from how many free prefill servers on a search for the best pair is bounded before it begins: in the order
// of the servers each one that is cheaper than those before it would be looked at with all decode servers.
const manyFree = 4

// freeBound bounds the search for the best free pair.
type freeBound struct {
	least    float64 // a little more than the best pair costs
	decoding float64 // less than any decode server costs behind the transfer
	best     Pair    // the best of the prefill server that is cheapest before the transfer; its Prefill is Aggregated where none was looked for
	cost     float64 // of best
}

// boundFree bounds the search by the best pair of the cheapest prefill server. Of few servers the first says nothing.
func (o *Order) boundFree(t *Ticket, s *Servers, price float64) freeBound {
	bound := freeBound{least: math.Inf(1), decoding: o.fastestDecode.leastCost(t), best: Pair{Aggregated, -1}}
	if len(o.free) < manyFree {
		return bound
	}
	cheapest, least := -1, math.Inf(1)
	for _, p := range o.free {
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer < least && !t.awaitsRest(p, &s.Prefill[p]) {
			cheapest, least = p, half+t.on(p).leastTransfer
		}
	}
	if cheapest < 0 {
		return bound
	}
	d, cost := s.bestFrom(t, cheapest, t.on(cheapest), price, math.Inf(1))
	return freeBound{cost + rounding, max(bound.decoding, s.leastDecoding(t)-rounding), Pair{cheapest, d}, cost}
}

// leastAggregated is less than any decode server costs a request that it computes the prompt of.
func (o *Order) leastAggregated(t *Ticket, s *Servers) float64 {
	streams := t.leastStreamDelay * float64(o.fastestDecode.Running)
	if t.streamsGoOn {
		streams *= 1 - s.StreamDiscount
	}
	return t.leastAggregatedCost + t.leastAggregated*expectedArrivals + streams + o.fastestDecode.leastCost(t)
}

// price is what a second of a request's prefill costs the others.
func (o *Order) price(t *Ticket) float64 { return t.Weights.Price(o.waitingPerServer) }

// rounding is more than sums of the parts of a cost, in seconds, differ by their order.
const rounding = 1e-6
