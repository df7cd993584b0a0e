package policy

var llmd = &Policy{
	Name: "llm-d", Kind: Released,
	Source: "llm-d/llm-d-router deploy/config/pd-epp-config.yaml: decode first, then prefill, each 2 x prefix-cache-scorer + 1 x queue-scorer; no prefill below 16 uncached tokens",
	New: stateless(func(v *View) Pair {
		d := llmdPick(v, v.Decodes(), v.DecodeHit, v.DecodeGauge)
		if v.Prompt()-v.DecodeHit(d) < 16 {
			return Pair{Prefill: Aggregated, Decode: d}
		}
		return Pair{Prefill: llmdPick(v, v.Prefills(), v.PrefillHit, v.PrefillGauge), Decode: d}
	}),
}

// llmdPick is the highest 2*match/prompt + (most - waiting)/(most - least), by
// the engine's own count of waiting requests; 1 where all wait alike.
func llmdPick(v *View, servers int, hit func(int) int, gauge func(int) Gauge) int {
	least, most := gauge(0).Waiting, gauge(0).Waiting
	for s := range servers {
		least, most = min(least, gauge(s).Waiting), max(most, gauge(s).Waiting)
	}
	return best(v.gateway.rng, servers, func(s int) float64 {
		queue := 1.0
		if most > least {
			queue = float64(most-gauge(s).Waiting) / float64(most-least)
		}
		// Matches are counted in blocks of 64 tokens of the prompt.
		return -(2*float64(hit(s)/64)/max(1, float64(v.Prompt()/64)) + queue)
	})
}
