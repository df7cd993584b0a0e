package policy

import "math/rand/v2"

var conductor = &Policy{
	Name: "mooncake", Kind: Released,
	Source: "Mooncake (FAST 2025, February 2025), Algorithm 1: the prefill server with the least queue + prefill time, then the decode server with the least predicted step time (without copying hot prefixes between prefill servers)",
	New: stateless(func(v *View) Pair {
		return Pair{
			Prefill: v.bestPrefill(func(p int) float64 { return v.QueueSeconds(p) + v.PrefillSeconds(p) }),
			Decode:  v.bestDecode(v.StepSeconds),
		}
	}),
}

var conductorCopying = &Policy{
	Name: "mooncake-copy", Kind: Released, Optional: true,
	Source: "mooncake with copying of hot prefixes (Algorithm 1 and section 6.2 of arXiv 2407.00079; FAST 2025): where another server holds more than balancingThreshold times as much of the prompt as this one, it is copied here first, which takes the transfer and leaves a copy; the paper gives no value of the threshold",
	New:    func(*Scenario, *rand.Rand) any { return copying{} },
}

// balancingThreshold is Algorithm 1's kvcache_balancing_threshold: of 2, 4 and 10 the one with the
// least mean TTFT in B, G and agents-06 together.
const balancingThreshold = 4

// copying is Algorithm 1 with its second branch.
type copying struct{}

func (c copying) Choose(v *View) Pair {
	holder := c.holder(v)
	return Pair{
		Prefill: v.bestPrefill(func(p int) float64 {
			if !c.copies(v, holder, p) {
				return v.QueueSeconds(p) + v.PrefillSeconds(p)
			}
			return v.CopySeconds(holder, p) + v.QueueSeconds(p) + v.PrefillSecondsHolding(p, v.PrefillHit(holder))
		}),
		Decode: v.bestDecode(v.StepSeconds),
	}
}

// holder is the server that holds most of the prompt.
func (c copying) holder(v *View) int {
	holder := 0
	for p := range v.Prefills() {
		if v.PrefillHit(p) > v.PrefillHit(holder) {
			holder = p
		}
	}
	return holder
}

func (c copying) copies(v *View, holder, p int) bool {
	return v.PrefillHit(holder) > balancingThreshold*v.PrefillHit(p)
}

func (c copying) CopyFrom(v *View, chosen Pair) (int, bool) {
	holder := c.holder(v)
	return holder, c.copies(v, holder, chosen.Prefill)
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
