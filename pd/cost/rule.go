package cost

import (
	"fmt"
	"math"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Rule is how a pair is chosen on arrival. All but Joint are what others do; they are
// there to compare with.
type Rule string

// The rules.
const (
	Joint        Rule = "joint"         // the pair with the least cost
	PrefillFirst Rule = "prefill-first" // prefill by queue and prefill time, then decode by its load: Mooncake's Algorithm 1
	LeastLoad    Rule = "least-load"    // each role by the requests that it has
	RoundRobin   Rule = "round-robin"   // the next one of each role
	Random       Rule = "random"        // any pair
)

// Validate reports what is wrong with the rule, nil if nothing.
func (r Rule) Validate() error {
	switch r {
	case Joint, PrefillFirst, LeastLoad, RoundRobin, Random:
		return nil
	}
	return fmt.Errorf("policy %q: want joint, prefill-first, least-load, round-robin or random", string(r))
}

// pick is a pair by the rule, and whether there is one. Decode runs alone only where no
// pair is possible. turn counts the choices by turns, draw is a number in 0..1 for each call:
// equal ones share.
func (r Rule) pick(s *order.Servers, t *order.Ticket, turn uint64, draw func() float64) (order.Pair, bool) {
	best, least := order.Pair{}, [2]float64{math.Inf(1), math.Inf(1)}
	for p := range s.Prefill {
		for d := range s.Decode {
			pair := order.Pair{Prefill: p, Decode: d}
			if !s.Possible(t, pair) {
				continue
			}
			cost := r.cost(s, t, pair, turn)
			cost[1] += 1e-9 * draw()
			if cost[0] < least[0] || cost[0] == least[0] && cost[1] < least[1] {
				best, least = pair, cost
			}
		}
	}
	if !math.IsInf(least[0], 1) {
		return best, true
	}
	for d := range s.Decode {
		pair := order.Pair{Prefill: order.Aggregated, Decode: d}
		if load := float64(s.Decode[d].Running) + draw(); s.Possible(t, pair) && load < least[0] {
			best, least[0] = pair, load
		}
	}
	return best, !math.IsInf(least[0], 1)
}

// cost is what the rule compares pairs by: first the one number, then the other.
func (r Rule) cost(s *order.Servers, t *order.Ticket, pair order.Pair, turn uint64) [2]float64 {
	p, d := &s.Prefill[pair.Prefill], &s.Decode[pair.Decode]
	switch r {
	case PrefillFirst:
		return [2]float64{p.Ahead + t.Prefill[pair.Prefill], float64(d.Running)}
	case LeastLoad:
		return [2]float64{float64(p.Queued), float64(d.Running)}
	case RoundRobin:
		return [2]float64{stepsTo(pair.Prefill, turn, len(s.Prefill)), stepsTo(pair.Decode, turn, len(s.Decode))}
	}
	return [2]float64{}
}

// stepsTo is how many servers come before one of n, from the one whose turn it is.
func stepsTo(i int, turn uint64, n int) float64 {
	return float64((i + n - int(turn%uint64(n))) % n)
}
