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
	price, decoding := o.price(t), o.fastestDecode.leastCost(t)
	least = math.Inf(1)
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer+decoding >= least {
			continue
		}
		if d, cost := s.bestFrom(t, p, t.on(p), price, least); cost < least {
			pair, least, o.decode = Pair{p, d}, cost, d
		}
	}
	return pair, least
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
