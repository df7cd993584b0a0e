package policy

var leastLoad = &Policy{
	Name: "least-load", Kind: Released,
	Source: "smg-project/smg 1.9.0 (2026-08-07) model_gateway/src/policies/least_load.rs: (queued + in-flight tokens)/throughput + 0.15 k/(1-k), k the KV usage, for each leg",
	New: stateless(func(v *View) Pair {
		// Throughputs are equal here, so tokens over SMG's nominal 2,000 tokens/s.
		const nominal = 2000
		return Pair{
			Prefill: v.bestPrefill(func(p int) float64 {
				return float64(v.PrefillPrompts(p))/nominal + kvPressure(v.PrefillGauge(p).KVUsed)
			}),
			Decode: v.bestDecode(func(d int) float64 {
				return float64(v.DecodeContext(d))/nominal + kvPressure(v.DecodeGauge(d).KVUsed)
			}),
		}
	}),
}

func kvPressure(used float64) float64 {
	k := min(used, 0.999)
	return 0.15 * k / (1 - k)
}
