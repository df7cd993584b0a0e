package policy

import "math/rand/v2"

// llm-d's rules are those of llm-d/llm-d-router at ebab687 (2026-08-22, after release 0.10.0 of
// 2026-08-17).

var llmd = &Policy{
	Name: "llm-d", Kind: Released,
	Source: "llm-d/llm-d-router deploy/config/pd-epp-config.yaml of 0.10.0 (2026-08-17): decode first, then prefill, each 2 x prefix-cache-scorer + 1 x queue-scorer; no prefill below 16 uncached tokens",
	New:    stateless(llmdSample.pair),
}

var llmdDefault = &Policy{
	Name: "llm-d-default", Kind: Released,
	Source: "the same with the scorers that llm-d takes where none are configured (pkg/epp/config/loader/defaults.go of 0.10.0), for each leg: 3 x prefix-cache-scorer + 2 x queue-scorer + 2 x kv-cache-utilization-scorer",
	New:    stateless(llmdWeights{prefix: 3, queue: 2, kv: 2}.pair),
}

var llmdFlowControl = &Policy{
	Name: "llm-d-flow", Kind: Released, Optional: true,
	Source: "llm-d with the feature gate flowControl (pkg/epp/flowcontrol/controller/internal/processor.go and saturationdetector/utilization of 0.10.0): requests wait, first come first served, while the mean over the prefill or the decode servers of max(waiting/5, KV used/0.8) is 1 or more; without its time limit; gauges never count as stale, and choices come 5 ms apart",
	New:    func(*Scenario, *rand.Rand) any { return &llmdFlow{} },
}

// llmdWeights are those of the scorers, each of which is 0 to 1.
type llmdWeights struct{ prefix, queue, kv float64 }

var llmdSample = llmdWeights{prefix: 2, queue: 1}

func (w llmdWeights) pair(v *View) Pair {
	d := w.pick(v, v.Decodes(), v.DecodeHit, v.DecodeGauge)
	if v.Prompt()-v.DecodeHit(d) < 16 {
		return Pair{Prefill: Aggregated, Decode: d}
	}
	return Pair{Prefill: w.pick(v, v.Prefills(), v.PrefillHit, v.PrefillGauge), Decode: d}
}

// pick is the highest of match/prompt, (most - waiting)/(most - least) by the engine's own count
// of waiting requests, 1 where all wait alike, and the KV that is free.
func (w llmdWeights) pick(v *View, servers int, hit func(int) int, gauge func(int) Gauge) int {
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
		match := float64(hit(s)/64) / max(1, float64(v.Prompt()/64))
		return -(w.prefix*match + w.queue*queue + w.kv*(1-gauge(s).KVUsed))
	})
}

// llmdFlow holds requests back while the engines' gauges show saturation. One goes at a time:
// the gauges are read 20 times a second, and all that wait would go to the same server between
// two of them if choosing took no time.
type llmdFlow struct {
	waiting []*job
	nextAt  float64
}

// llmdDispatch is what a choice takes, seconds: llm-d publishes a median of 3.6 ms at 500
// requests a second (test/perf, high_qps_small_token_comparison_analysis.md).
const llmdDispatch = 0.005

func (f *llmdFlow) Add(_ *View, j *job) { f.waiting = append(f.waiting, j) }

func (f *llmdFlow) Next(v *View) (*job, bool) {
	if len(f.waiting) == 0 || v.now < f.nextAt ||
		llmdSaturation(v.Prefills(), v.PrefillGauge) >= 1 || llmdSaturation(v.Decodes(), v.DecodeGauge) >= 1 {
		return nil, false
	}
	f.nextAt = v.now + llmdDispatch
	j := f.waiting[0]
	f.waiting = f.waiting[1:]
	v.gateway.viewFor(j)
	j.pair = llmdSample.pair(v)
	return j, true
}

func (f *llmdFlow) Wake(v *View) (float64, bool) { return v.now + llmdDispatch, len(f.waiting) > 0 }

// llmdSaturation is the mean over the servers of a leg; 1 is as much as each should have.
func llmdSaturation(servers int, gauge func(int) Gauge) float64 {
	const (
		waiting = 5
		kvUsed  = 0.8
	)
	sum := 0.0
	for s := range servers {
		g := gauge(s)
		sum += max(float64(g.Waiting)/waiting, g.KVUsed/kvUsed)
	}
	return sum / float64(servers)
}
