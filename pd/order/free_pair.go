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
	least, decoding := o.boundFree(t, s, price)
	found := false
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer+decoding >= least {
			continue
		}
		if d, cost := s.bestFrom(t, p, t.on(p), price, least); cost < least {
			pair, least, o.decode, found = Pair{p, d}, cost, d, true
		}
	}
	if !found {
		return Pair{}, math.Inf(1)
	}
	return pair, least
}

// manyFree is from how many free prefill servers on a search for the best pair is bounded before it begins: in the order
// of the servers each one that is cheaper than those before it would be looked at with all decode servers.
const manyFree = 4

// boundFree is a little more than what the best free pair costs, by the best one of the cheapest prefill server, and less
// than what any decode server costs behind the transfer. Of few servers the first says nothing.
func (o *Order) boundFree(t *Ticket, s *Servers, price float64) (least, decoding float64) {
	least, decoding = math.Inf(1), o.fastestDecode.leastCost(t)
	if len(o.free) < manyFree {
		return least, decoding
	}
	cheapest := -1
	for _, p := range o.free {
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer < least && !t.awaitsRest(p, &s.Prefill[p]) {
			cheapest, least = p, half+t.on(p).leastTransfer
		}
	}
	if cheapest < 0 {
		return math.Inf(1), decoding
	}
	_, cost := s.bestFrom(t, cheapest, t.on(cheapest), price, math.Inf(1))
	return cost + rounding, max(decoding, s.leastDecoding(t)-rounding)
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
