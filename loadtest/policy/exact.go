package policy

import "math/rand/v2"

var lateExact = &Policy{
	Name: "tandem-late-exact", Kind: Reference, Exact: true, OneDecider: true,
	Source: "tandem-late that knows each prefill's true time and hears of everything at once: what better knowledge would change of the same rule",
	New:    func(s *Scenario, _ *rand.Rand) any { return newLateBinder(s, true) },
}
