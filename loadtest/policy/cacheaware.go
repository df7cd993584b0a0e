package policy

var cacheAware = &Policy{
	Name: "sglang-cache-aware", Kind: Released,
	Source: "smg-project/smg 1.9.0 (2026-08-07) model_gateway/src/policies/cache_aware.rs with the defaults of its command line, decode by power of two (sgl-model-gateway --pd-disaggregation)",
	New: stateless(func(v *View) Pair {
		return Pair{Prefill: cacheAwarePrefill(v), Decode: twoChoices(v, v.Decodes(), v.DecodeRequests)}
	}),
}

// cacheAwarePrefill is least load while the fleet is imbalanced; otherwise the
// server with the longest match if that is more than a part of the prompt, and
// the least loaded if not.
func cacheAwarePrefill(v *View) int {
	const (
		threshold = 0.3 // of the prompt
		absolute  = 64  // requests
		relative  = 1.5
	)
	least, most := v.PrefillRequests(0), v.PrefillRequests(0)
	longest := 0
	for p := range v.Prefills() {
		least, most = min(least, v.PrefillRequests(p)), max(most, v.PrefillRequests(p))
		longest = max(longest, v.PrefillHit(p))
	}
	imbalanced := most-least > absolute && float64(most) > relative*float64(least)
	if imbalanced || float64(longest) <= threshold*float64(v.Prompt()) {
		return v.bestPrefill(func(p int) float64 { return float64(v.PrefillRequests(p)) })
	}
	return v.bestPrefill(func(p int) float64 {
		if v.PrefillHit(p) == longest { // of equal matches the least loaded
			return float64(v.PrefillRequests(p))
		}
		return 1e9
	})
}
