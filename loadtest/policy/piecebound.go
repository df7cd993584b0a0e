package policy

import (
	"math"
	"math/bits"
)

// pieceBound is a mean time to the first token that no schedule is below which sends every prompt
// to one prefill server, whole or in pieces between which others have their turn. It is the least
// over all assignments of requests to servers. Of one assignment each server works on what has
// the least left, which is the best that one server can do for the mean. What is left out makes
// it only smaller: the cached beginning that several prompts of a server share is computed once,
// and the others need not wait for it; transfers take no time, as where decode pulls each piece
// while the next is computed.
type pieceBound struct {
	*optimum
	least    []float64 // of each request: service at best, and tail
	assigned []uint    // requests of each server, as bits
	cost     []float64 // of each server
	costs    map[uint]float64
	bound    float64
}

// boundOfPieces returns the bound for the requests of a run, in seconds.
func boundOfPieces(c *cluster) float64 {
	b := &pieceBound{optimum: newOptimum(c), bound: math.Inf(1), costs: map[uint]float64{0: 0}}
	b.assigned, b.cost = make([]uint, c.scenario.Prefill), make([]float64, c.scenario.Prefill)
	for i := range b.requests {
		b.least = append(b.least, b.service(i, b.shared(i, ^uint(0)))+b.tailOfPiece(i)+b.scenario.trip())
	}
	b.assign(0, 0)
	return b.bound / float64(len(b.requests))
}

// tailOfPiece is the least time from the end of a prefill to the first token.
func (b *pieceBound) tailOfPiece(i int) float64 {
	return b.scenario.handOff() + b.scenario.Hardware.step(1, b.requests[i].Prompt)
}

// shared is how many leading blocks a prompt shares at most with others of a set.
func (b *pieceBound) shared(i int, set uint) (most int) {
	for k, n := range b.common[i] {
		if k != i && set&(1<<k) != 0 {
			most = max(most, n)
		}
	}
	return most
}

// assign gives request i and those behind it to servers; sum is what those before it take.
func (b *pieceBound) assign(i int, sum float64) {
	rest := 0.0
	for k := i; k < len(b.requests); k++ {
		rest += b.least[k]
	}
	if sum+rest >= b.bound {
		return
	}
	if i == len(b.requests) {
		b.bound = sum
		return
	}
	empty := false
	for p := range b.assigned {
		if empty && b.assigned[p] == 0 {
			continue // the servers are alike: one without work is enough
		}
		empty = empty || b.assigned[p] == 0
		before, cost := b.assigned[p], b.cost[p]
		b.assigned[p] |= 1 << i
		b.cost[p] = b.costOf(b.assigned[p])
		b.assign(i+1, sum-cost+b.cost[p])
		b.assigned[p], b.cost[p] = before, cost
	}
}

// costOf is the least sum of the times to the first token of a server's requests.
func (b *pieceBound) costOf(set uint) float64 {
	if cost, known := b.costs[set]; known {
		return cost
	}
	b.costs[set] = b.firsts(set, set, 0)
	return b.costs[set]
}

// firsts tries which request of each group that shares a beginning computes it: open are those of
// which is not known yet whether they do, computes those that do.
func (b *pieceBound) firsts(set, open, computes uint) float64 {
	if open == 0 {
		return b.leastLeftFirst(set, computes)
	}
	group := b.group(bits.TrailingZeros(open), set)
	cost := math.Inf(1)
	for i := range b.requests {
		if group&(1<<i) != 0 {
			cost = min(cost, b.firsts(set, open&^group, computes|1<<i))
		}
	}
	return cost
}

// group is a request and those of a set that share a beginning with it.
func (b *pieceBound) group(i int, set uint) uint {
	group := uint(1) << i
	for k, n := range b.common[i] {
		if n > 0 && set&(1<<k) != 0 {
			group |= 1 << k
		}
	}
	return group
}

// leastLeftFirst is the sum of the times to the first token where a server works on what has the
// least left of all that are there.
func (b *pieceBound) leastLeftFirst(set, computes uint) float64 {
	left := make([]float64, len(b.requests))
	for i := range left {
		if set&(1<<i) != 0 {
			left[i] = b.work(i, set, computes)
		}
	}
	now, sum := 0.0, 0.0
	for set != 0 {
		chosen, next := -1, math.Inf(1) // what has the least left, and when another one comes
		for i := range left {
			switch {
			case set&(1<<i) == 0:
			case b.arrived[i]+b.scenario.trip() > now:
				next = min(next, b.arrived[i]+b.scenario.trip())
			case chosen < 0 || left[i] < left[chosen]:
				chosen = i
			}
		}
		if chosen < 0 || now+left[chosen] > next {
			if chosen >= 0 {
				left[chosen] -= next - now
			}
			now = next
			continue
		}
		now += left[chosen]
		set &^= 1 << chosen
		sum += now + b.tailOfPiece(chosen) - b.arrived[chosen]
	}
	return sum
}

// work is what a prompt of a server's set takes there: without what it shares with others, unless
// it is the one that computes that. Which of them computes how much of it is open, so it takes
// what it takes the fastest of them.
func (b *pieceBound) work(i int, set, computes uint) float64 {
	shared := b.shared(i, set)
	work := b.service(i, shared)
	if computes&(1<<i) == 0 || shared == 0 {
		return work
	}
	head := math.Inf(1)
	for k := range b.requests {
		if b.group(i, set)&(1<<k) != 0 {
			head = min(head, b.service(k, 0)-b.service(k, min(shared, len(b.requests[k].whole()))))
		}
	}
	return work + head
}
