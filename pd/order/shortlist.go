package order

import (
	"math"
	"slices"
)

// Cheapest returns the numbers, in their order, of at most so many prefill and decode servers: those that cost a request
// least, a pair's own among them, and the decode server that is best alone, Aggregated if there is none. Decode servers are
// compared by what they cost behind the prefill server of the pair, where it has one.
func (s *Servers) Cheapest(t *Ticket, pair Pair, alone int, price float64, most int) (prefills, decodes []int) {
	prefills = cheapest(len(s.Prefill), most, func(p int) float64 {
		switch {
		case p == pair.Prefill:
			return math.Inf(-1)
		case s.Prefill[p].Excluded:
			return math.Inf(1)
		}
		on := t.pricedOn(p, price)
		_, half := s.prefillSide(t, p, &on, price)
		return half
	})
	var on prefillCost
	if pair.Prefill != Aggregated {
		on = t.pricedOn(pair.Prefill, price)
	}
	decodes = cheapest(len(s.Decode), most, func(d int) float64 {
		switch state := &s.Decode[d]; {
		case d == pair.Decode || d == alone:
			return math.Inf(-1)
		case state.Excluded:
			return math.Inf(1)
		case pair.Prefill == Aggregated:
			return s.decodeSide(t, state, 0, fromDecode)
		}
		return s.costOnPair(t, Pair{pair.Prefill, d}, &on, t.Missing[d], at(t.DecodeReady, d), price)
	})
	return prefills, decodes
}

// cheapest are the numbers below n that cost least, at most so many, in their order.
func cheapest(n, most int, cost func(int) float64) []int {
	type costs struct {
		number int
		cost   float64
	}
	least := make([]costs, 0, most+1) // the cheapest first
	for i := range n {
		c := costs{i, cost(i)}
		if len(least) == most && c.cost >= least[most-1].cost {
			continue
		}
		at := len(least)
		for at > 0 && c.cost < least[at-1].cost {
			at--
		}
		least = slices.Insert(least, at, c)[:min(len(least)+1, most)]
	}
	numbers := make([]int, len(least))
	for i, c := range least {
		numbers[i] = c.number
	}
	slices.Sort(numbers)
	return numbers
}
