package policy

var powerOfTwo = &Policy{
	Name: "power-of-two", Kind: Released,
	Source: "smg-project/smg 1.9.0 (2026-08-07) model_gateway/src/policies/power_of_two.rs: of two random servers the one with fewer requests, for each leg",
	New: stateless(func(v *View) Pair {
		return Pair{
			Prefill: twoChoices(v, v.Prefills(), v.PrefillRequests),
			Decode:  twoChoices(v, v.Decodes(), v.DecodeRequests),
		}
	}),
}

func twoChoices(v *View, servers int, load func(int) int) int {
	if servers < 2 {
		return 0
	}
	a := v.Tie(servers)
	b := (a + 1 + v.Tie(servers-1)) % servers
	if load(b) < load(a) {
		return b
	}
	return a
}
