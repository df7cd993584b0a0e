package policy

var conductor = &Policy{
	Name: "mooncake", Kind: Released,
	Source: "Mooncake, FAST 2025, Algorithm 1: the prefill server with the least queue + prefill time, then the decode server with the least predicted step time (without copying hot prefixes between prefill servers)",
	New: stateless(func(v *View) Pair {
		return Pair{
			Prefill: v.bestPrefill(func(p int) float64 { return v.QueueSeconds(p) + v.PrefillSeconds(p) }),
			Decode:  v.bestDecode(v.StepSeconds),
		}
	}),
}

var networkAware = &Policy{
	Name: "network-aware", Kind: Published,
	Source: "in the manner of NetKV (arXiv 2606.03910): Mooncake's prefill, then the decode server with the least transfer + room + step time",
	New: stateless(func(v *View) Pair {
		p := v.bestPrefill(func(p int) float64 { return v.QueueSeconds(p) + v.PrefillSeconds(p) })
		return Pair{Prefill: p, Decode: v.bestDecode(func(d int) float64 {
			return v.TransferSeconds(p, d) + v.RoomSeconds(d) + v.StepSeconds(d)
		})}
	}),
}
