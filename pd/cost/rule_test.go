package cost

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// By turns each server of a role is chosen as often as the others, whatever they hold.
func TestRule_RoundRobinTakesServersByTurns(t *testing.T) {
	m := Default()
	m.Rule, m.PairsFirst = RoundRobin, true
	servers := func(ids ...string) (all []Candidate) {
		for _, id := range ids {
			all = append(all, Candidate{ID: id, Queue: time.Second})
		}
		return all
	}
	f := &Candidates{Prefill: servers("p0", "p1", "p2"), Decode: servers("d0", "d1"), Links: new(order.LinkTable)}
	NewLinks(DefaultLinks()).Fill(f.Links, f.Prefill, f.Decode, time.Unix(0, 0))
	f.Prefill[0].Cached.GPU, f.Prefill[0].Queue = 4000, 0
	var chosen []string
	for range 6 {
		a, ok := m.Choose(Demand{PromptTokens: 4000, OutputTokens: 10}, f, func(int) int { return 0 })
		if !ok {
			t.Fatal("no pair")
		}
		chosen = append(chosen, a.Prefill+a.Decode)
	}
	if slices.Sort(chosen); len(slices.Compact(chosen)) != 6 {
		t.Errorf("six choices of three and two servers: %v", chosen)
	}
}
