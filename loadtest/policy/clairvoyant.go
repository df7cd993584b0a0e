package policy

import "math/rand/v2"

var clairvoyant = &Policy{
	Name: "clairvoyant", Kind: Reference, Exact: true, OneDecider: true,
	Source: "tandem-late that knows each prefill's true time and hears of everything at once: how much room is left",
	New:    func(s *Scenario, _ *rand.Rand) any { return newLateBinder(s, true) },
}
