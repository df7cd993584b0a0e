package policy

import (
	"slices"
	"testing"
)

// The short comparison has every policy of ours, and every rival that a goal names or that is the best
// at its defaults on the conversation trace, so that all goals can be judged by it.
func TestStrongest_HasOursAndTheRivalsOfGoals(t *testing.T) {
	short, err := FindPolicies([]string{"strongest"})
	if err != nil {
		t.Fatal(err)
	}
	has := func(name string) bool {
		return slices.ContainsFunc(short, func(p *Policy) bool { return p.Name == name })
	}
	for _, name := range strongestRivals {
		if !slices.Contains(Names(), name) {
			t.Errorf("there is no policy %s", name)
		}
	}
	for _, p := range Policies() {
		if p.Kind == Ours && !has(p.Name) {
			t.Errorf("without %s, which is ours", p.Name)
		}
	}
	for _, g := range goals() {
		named := g.against != bestReleased && g.against != bestDefault && g.against != oneGateway && g.against != itself
		if named && !has(g.against) {
			t.Errorf("without %s, which a goal of %s is held against", g.against, g.scenario)
		}
	}
	if all := len(Policies()); len(short) >= all {
		t.Errorf("%d policies of %d", len(short), all)
	}
}

// What the gateway does by default is what it does in pieces on engines whose prefill says the first token, and where none
// can say it the same as without. What no policy is below on such engines is less.
func TestByDefault_HasTheFirstTokenFromPrefillWhereEnginesCan(t *testing.T) {
	for _, name := range []string{"A", "D"} {
		s, said := scenario(t, name), *scenario(t, name)
		said.FirstFromPrefill = true
		got, want, without := meanTTFT(t, readShort(t), s, byDefault), meanTTFT(t, readShort(t), &said, pieces), meanTTFT(t, readShort(t), s, pieces)
		if got != want || (got == without) != s.Overlap {
			t.Errorf("%s: a mean TTFT of %v s, want that of engines which say it on prefill, %v s; on others it is %v s", name, got, want, without)
		}
		r, err := Compare(t.Context(), Config{Traces: []string{tracePath}, Limit: 150, Scenarios: []*Scenario{s}, Policies: []*Policy{dynamo, pieces, byDefault}, Seeds: 1, Parallel: 2}, func(int, int, *Outcome) {})
		if err != nil {
			t.Fatal(err)
		}
		if a, b := r.Scenarios[0].policy(pieces.Name).bound, r.Scenarios[0].policy(byDefault.Name).bound; b > a || (a == b) != s.Overlap || a != r.Scenarios[0].TTFTBound.Mean {
			t.Errorf("%s: no policy is below %v s, and on engines that say the first token on prefill below %v s", name, a, b)
		}
	}
}
