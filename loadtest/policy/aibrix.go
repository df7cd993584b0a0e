package policy

import (
	"math"
	"math/rand/v2"
)

// AIBrix's rules are those of vllm-project/aibrix at e3e10f9e (2026-08-22, after release 0.7.0 of
// 2026-06-17), pkg/plugins/gateway/algorithms, with one roleset and defaults; hybrid_cache_load is of
// 7a346b9f (2026-09-09). Whether a release has the two that are younger than 0.7.0 could not be
// looked up. token_load, hybrid_cache_load without the cache, is left out.

var aibrix = &Policy{
	Name: "aibrix-pd", Kind: Released,
	Source: "vllm-project/aibrix pkg/plugins/gateway/algorithms/pd_disaggregation.go and pd/prefill_scorer.go of 0.7.0 (2026-06-17): prefix_cache prefill score, load_balancing decode score, one roleset, defaults",
	New: stateless(func(v *View) Pair {
		return Pair{Prefill: aibrixPrefill(v, aibrixPrefixScore), Decode: aibrixDecode(v)}
	}),
}

var aibrixConductor = &Policy{
	Name: "aibrix-conductor", Kind: Released, Optional: true,
	Source: "aibrix-pd with AIBRIX_PREFILL_SCORE_POLICY=conductor (pd/prefill_scorer.go at e3e10f9e, 2026-08-22): requests x mean prefill time + 0.005 ms a cached token + 1 + 0.001 ms x (new tokens)^1.5 + 5; its decode score prefers the busiest without vLLM's old throughput gauge, and so is not taken",
	New: func(s *Scenario, _ *rand.Rand) any {
		return &conductorScore{seconds: make([]float64, s.Prefill), prefills: make([]float64, s.Prefill)}
	},
}

var aibrixHybrid = &Policy{
	Name: "aibrix-hybrid", Kind: Released, Optional: true,
	Source: "aibrix-pd with AIBRIX_PREFILL_SCORE_POLICY=hybrid_cache_load (pd/prefill_scorer.go and token_load_tracker.go at 7a346b9f, 2026-09-09; issue 2680): (active tokens + 0.3 resident tokens) x (1 - 0.5 match^2), each request 3,500 tokens and its new ones; no session keys",
	New: func(s *Scenario, _ *rand.Rand) any {
		return &hybridScore{active: make([]float64, s.Prefill), resident: make([]float64, s.Prefill), charged: make(map[*job]float64)}
	},
}

// aibrixPrefill is the least loaded when the spread is above 16 requests; otherwise the least
// score among those whose requests are at most mean + 1 standard deviation.
func aibrixPrefill(v *View, score func(v *View, p int, most float64) float64) int {
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
		return score(v, p, max(1, most))
	})
}

// aibrixMatch is how much of the prompt p holds, in whole percent.
func aibrixMatch(v *View, p int) float64 {
	return math.Floor(100 * float64(v.PrefillHit(p)+1) / float64(v.Prompt()))
}

// aibrixPrefixScore is prefix_cache: (100 - match%) * 0.1 + requests/most requests.
func aibrixPrefixScore(v *View, p int, most float64) float64 {
	return (100-aibrixMatch(v, p))*0.1 + float64(v.PrefillRequests(p))/most
}

// conductorScore is conductor: the predicted time to the first token, by the mean time of the
// prefills that each engine has reported.
type conductorScore struct {
	seconds, prefills []float64 // by prefill server: of all prefills, and how many
}

func (c *conductorScore) Choose(v *View) Pair {
	return Pair{Prefill: aibrixPrefill(v, c.score), Decode: aibrixDecode(v)}
}

func (c *conductorScore) score(v *View, p int, _ float64) float64 {
	prefill := func(tokens float64) float64 { return 0.001*math.Pow(tokens, 1.5) + 5 }
	mean := prefill(512) // until an engine has reported one
	if c.prefills[p] > 0 {
		mean = 1000 * c.seconds[p] / c.prefills[p]
	}
	held := float64(v.Prompt()) * aibrixMatch(v, p) / 100
	milliseconds := float64(v.PrefillRequests(p)) * mean
	if held > 0 {
		milliseconds += 0.005*held + 1
	}
	if missing := float64(v.Prompt()) - held; missing > 0 {
		milliseconds += prefill(missing)
	}
	return milliseconds
}

func (c *conductorScore) Prefilled(_ *View, j *job) {
	c.seconds[j.pair.Prefill] += j.prefilledAt - j.began
	c.prefills[j.pair.Prefill]++
}

func (c *conductorScore) Transferred(*View, *job, float64) {}

// hybridScore is hybrid_cache_load: the tokens that each gateway has charged to a server, active
// until prefill has answered and resident until the request ends, less for what it holds.
type hybridScore struct {
	active, resident []float64 // tokens by prefill server
	charged          map[*job]float64
}

func (h *hybridScore) Choose(v *View) Pair {
	const requestCost = 3500 // tokens
	p := aibrixPrefill(v, h.score)
	cost := requestCost + float64(v.Prompt())*(1-aibrixMatch(v, p)/100)
	h.charged[v.job] = cost
	h.active[p] += cost
	h.resident[p] += cost
	return Pair{Prefill: p, Decode: aibrixDecode(v)}
}

func (h *hybridScore) score(v *View, p int, _ float64) float64 {
	const (
		residentWeight = 0.3
		factor         = 0.5
	)
	match := aibrixMatch(v, p) / 100
	return max(1, h.active[p]+residentWeight*h.resident[p]) * (1 - factor*match*match)
}

func (h *hybridScore) Prefilled(_ *View, j *job) { h.active[j.pair.Prefill] -= h.charged[j] }

func (h *hybridScore) Transferred(*View, *job, float64) {}

// Ended forgets a request; those of other replicas were not charged here.
func (h *hybridScore) Ended(j *job) {
	h.resident[j.pair.Prefill] -= h.charged[j]
	delete(h.charged, j)
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
