package policy

var randomPolicy = &Policy{
	Name: "random", Kind: Baseline,
	Source: "any balancer",
	New: stateless(func(v *View) Pair {
		return Pair{Prefill: v.Tie(v.Prefills()), Decode: v.Tie(v.Decodes())}
	}),
}
