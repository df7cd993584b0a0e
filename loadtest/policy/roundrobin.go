package policy

import "math/rand/v2"

var roundRobin = &Policy{
	Name: "round-robin", Kind: Baseline,
	Source: "any balancer; vllm-project/production-stack disaggregated_prefill_orchestrated, on both sides",
	New: func(s *Scenario, rng *rand.Rand) any {
		return &roundRobinState{prefills: rng.Perm(s.Prefill), decodes: rng.Perm(s.Decode)}
	},
}

// roundRobinState takes the servers of each role by turns, in an order that has nothing to
// do with their racks.
type roundRobinState struct {
	prefills, decodes []int
	next              int
}

func (t *roundRobinState) Choose(*View) Pair {
	p := Pair{Prefill: t.prefills[t.next%len(t.prefills)], Decode: t.decodes[t.next%len(t.decodes)]}
	t.next++
	return p
}
