package policy

import "math"

var aibrix = &Policy{
	Name: "aibrix-pd", Kind: Released,
	Source: "vllm-project/aibrix pkg/plugins/gateway/algorithms/pd_disaggregation.go: prefix_cache prefill score, load_balancing decode score, one roleset, defaults",
	New: stateless(func(v *View) Pair {
		return Pair{Prefill: aibrixPrefill(v), Decode: aibrixDecode(v)}
	}),
}

// aibrixPrefill is the least loaded when the spread is above 16 requests;
// otherwise the least (100 - match%) * 0.1 + requests/most requests among those
// whose requests are at most mean + 1 standard deviation.
func aibrixPrefill(v *View) int {
	const imbalance = 16
	requests := func(p int) float64 { return float64(v.PrefillRequests(p)) }
	least, most, sum, squares := math.Inf(1), 0.0, 0.0, 0.0
	for p := range v.Prefills() {
		n := requests(p)
		least, most = min(least, n), max(most, n)
		sum, squares = sum+n, squares+n*n
	}
	if most-least > imbalance {
		return v.bestPrefill(requests)
	}
	mean := sum / float64(v.Prefills())
	limit := mean + math.Sqrt(max(0, squares/float64(v.Prefills())-mean*mean))
	return v.bestPrefill(func(p int) float64 {
		if requests(p) > limit {
			return math.Inf(1)
		}
		match := math.Floor(100 * float64(v.PrefillHit(p)+1) / float64(v.Prompt()))
		return (100-match)*0.1 + requests(p)/max(1, most)
	})
}

// aibrixDecode is the least running/most running over free KV/most free KV, the
// least loaded when the spread of requests is 16 or more. The throughput gauge of
// the rule is no longer exported by vLLM and so the same for all.
func aibrixDecode(v *View) int {
	const imbalance = 16
	requests := func(d int) float64 { return float64(v.DecodeRequests(d)) }
	free := func(d int) float64 { return max(0.001, 1-v.DecodeGauge(d).KVUsed) }
	least, most, freest := math.Inf(1), 0.0, 0.0
	for d := range v.Decodes() {
		least, most = min(least, requests(d)), max(most, requests(d))
		freest = max(freest, free(d))
	}
	if most-least >= imbalance {
		return v.bestDecode(requests)
	}
	return v.bestDecode(func(d int) float64 { return requests(d) / max(1, most) / (free(d) / freest) })
}
