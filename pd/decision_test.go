package pd

import (
	"fmt"
	"testing"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// A ring of decisions over a large fleet is bounded in servers, and the chosen pair of an old
// one can still be explained.
func TestDecisions_AreBoundedInServers(t *testing.T) {
	f := cost.Candidates{}
	for i := range 256 {
		c := cost.Candidate{ID: fmt.Sprint("p", i), Prefill: pools.Default().Prefill, Step: pools.Default().Step}
		f.Prefill = append(f.Prefill, c)
		c.ID, c.Running = fmt.Sprint("d", i), i
		f.Decode = append(f.Decode, c)
	}
	f.Links = cost.NewLinks(cost.DefaultLinks()).Table(f.Prefill, f.Decode, testTime)
	m, r := cost.Default(), cost.Demand{PromptTokens: 8000, OutputTokens: 100}
	chosen, ok := m.Choose(r, &f, func(int) int { return 0 })
	if !ok || chosen.Prefill == "" {
		t.Fatalf("chosen: %+v", chosen)
	}
	d := NewDecisions(1024)
	for i := range 1500 {
		d.Add(Decision{RequestID: fmt.Sprint(i), Choices: []Choice{{Demand: r, Candidates: f, Chosen: chosen}}})
	}
	remembered := 0
	for i := range d.ring {
		remembered += d.ring[i].candidates()
	}
	if remembered > maxCandidates || remembered != d.candidates {
		t.Errorf("%d servers are remembered, counted as %d", remembered, d.candidates)
	}
	newest, _ := d.Find("1499")
	oldest, found := d.Find("476")
	if !found || len(newest.Choices[0].Candidates.Decode) != 256 {
		t.Fatalf("found %v, %d decode servers of the newest", found, len(newest.Choices[0].Candidates.Decode))
	}
	explain := func(c Choice) []cost.Explained { return m.Explain(c.Demand, c.Candidates, c.Chosen, 1) }
	want, got := explain(newest.Choices[0]), explain(oldest.Choices[0])
	if len(got) == 0 || got[0] != want[0] {
		t.Errorf("explained %+v\n     want %+v", got, want)
	}
}
