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
