package policy

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Dynamo's rules are those of ai-dynamo/dynamo 1.5.1, whose date was not found; files were read at
// 088ca50 (conditional_disagg.rs), 07a6c9c (conditional_bypass.rs) and 0243c51 (config.rs, which
// refuses a prefill load model beside wspt; whether 1.5.1 does could not be looked up, and the
// policies here have both). Its rule for a pool of KV that servers share, off by default, is that of
// lib/kv-router/src/scheduling/overlap.rs (read at 13a4eea) and of "Using HiCache" of its 1.5.0 documentation:
// hits_beyond(device) blocks of the pool are credited with shared_cache_multiplier, 0.5 in the page's example,
// and the credited cost is not below zero.

var dynamo = &Policy{
	Name: "dynamo", Kind: Released,
	Source: "ai-dynamo/dynamo docs/components/router/router-concepts.md of 1.5.1: active + incoming uncached prefill blocks, then active + incoming decode blocks; decode without overlap credit; queueing off, its default",
	New:    newDynamo(dynamoRouter{}),
}

var dynamoTopology = &Policy{
	Name: "dynamo-topology", Kind: Released, Optional: true,
	Source: "the same with docs/components/router/topology-aware-kv-transfer.md: domain rack, preferred, weight 0.85: costs in the rack times exp(-tanh(0.85)) (lib/kv-router/src/protocols.rs)",
	New:    newDynamo(dynamoRouter{topology: topologyWeight}),
}

var dynamoQueue = &Policy{
	Name: "dynamo-wspt", Kind: Released, Optional: true,
	Source: "dynamo with --router-queue-threshold 2 (a former default) --router-queue-policy wspt (lib/kv-router/src/scheduling/policy.rs): requests wait while all prefill servers have more than 2 x 8,192 active prefill tokens, fewest new tokens first",
	New:    newDynamo(dynamoRouter{queues: true, threshold: 2}),
}

// dynamoShared are Dynamo's rule for a shared pool with the multiplier of its documentation, alone and with
// its further options. Without a store they are what they are called after.
var dynamoShared = []*Policy{
	{
		Name: "dynamo-shared", Kind: Released, Optional: true,
		Source: "dynamo with --shared-cache-multiplier 0.5 (lib/kv-router/src/scheduling/overlap.rs at 13a4eea; docs 1.5.0, Using HiCache)",
		New:    newDynamo(dynamoRouter{shared: sharedCacheMultiplier}),
	},
	{
		Name: "dynamo-shared-topology-wspt", Kind: Released, Optional: true,
		Source: "dynamo-topology-wspt and dynamo-shared together",
		New:    newDynamo(dynamoRouter{topology: topologyWeight, queues: true, threshold: 2, shared: sharedCacheMultiplier}),
	},
}

// sharedCacheMultiplier is that of the example in Dynamo's documentation: to fetch is half as dear as to
// compute. Its default is 0.
const sharedCacheMultiplier = 0.5

var dynamoAll = &Policy{
	Name: "dynamo-topology-wspt", Kind: Released, Optional: true,
	Source: "dynamo-topology and dynamo-wspt together",
	New:    newDynamo(dynamoRouter{topology: topologyWeight, queues: true, threshold: 2}),
}

// dynamoFull are dynamo-topology-wspt with its further options, alone and together: lower
// queue thresholds, and conditional disaggregation by both readings of it.
var dynamoFull = []*Policy{
	dynamoWith("dynamo-queue-0.5", 0.5, remoteOnly),
	dynamoWith("dynamo-queue-0.1", 0.1, remoteOnly),
	dynamoWith("dynamo-conditional-hot", 2, conditionalHot),
	dynamoWith("dynamo-conditional-kv", 2, conditionalCost),
	dynamoWith("dynamo-conditional-hot-0.5", 0.5, conditionalHot),
	dynamoWith("dynamo-conditional-kv-0.5", 0.5, conditionalCost),
	dynamoWith("dynamo-conditional-hot-0.1", 0.1, conditionalHot),
	dynamoWith("dynamo-conditional-kv-0.1", 0.1, conditionalCost),
}

// topologyWeight is the weight in the example of Dynamo's topology page.
const topologyWeight = 0.85

// dynamoLocal says which decode server is looked at for whether it computes a prompt itself.
type dynamoLocal int

const (
	remoteOnly      dynamoLocal = iota // none: every prompt goes to a prefill server
	conditionalHot                     // the one that holds most of the prompt
	conditionalCost                    // the one that the decode router's KV cost chooses
)

func dynamoWith(name string, threshold float64, local dynamoLocal) *Policy {
	source := "dynamo-topology-wspt"
	if threshold != 2 {
		source += ", --router-queue-threshold lowered (docs/components/router/router-configuration.md: any value from 0, the most sensitive)"
	}
	switch local {
	case conditionalHot:
		source += ", --router-conditional-disagg, isl_bounding: the decode server that holds most of the prompt is looked at, as the field's comment says (lib/kv-router/src/conditional_disagg.rs)"
	case conditionalCost:
		source += ", --router-conditional-disagg, isl_bounding: the decode server that the decode router would choose is looked at (lib/llm/src/kv_router/prefill_router/conditional_bypass.rs of 1.5.1)"
	}
	return &Policy{
		Name: name, Kind: Released, Optional: true, Source: source,
		New: newDynamo(dynamoRouter{topology: topologyWeight, queues: true, threshold: threshold, local: local}),
	}
}

// dynamoRouter is Dynamo's KV router of 1.5.1 with its options.
type dynamoRouter struct {
	topology  float64 // weight of the prefill server's rack; 0: racks are alike
	queues    bool
	shared    float64 // credit for what the store has beyond the server
	threshold float64 // of active prefill tokens, times the engine's token budget
	local     dynamoLocal

	waiting []dynamoWaiting
	bound   []*job // for their decode server alone: they wait for no prefill server
}

type dynamoWaiting struct {
	job *job
	key int // new tokens with the best overlap, as it was on arrival
}

func newDynamo(router dynamoRouter) func(*Scenario, *rand.Rand) any {
	return func(*Scenario, *rand.Rand) any {
		own := router
		if own.queues {
			return &own
		}
		return chooserFunc(own.choose)
	}
}

// choose binds a request on arrival.
func (r *dynamoRouter) choose(v *View) Pair {
	if d, ok := r.bypass(v); ok {
		return Pair{Prefill: Aggregated, Decode: d}
	}
	return r.pair(v)
}

// pair is the prefill server with the fewest active and new tokens, and then the decode
// server with the least active context.
func (r *dynamoRouter) pair(v *View) Pair {
	p := v.bestPrefill(func(p int) float64 {
		return max(0, dynamoActive(v, p)+float64(v.Prompt()-v.PrefillHit(p))-r.shared*float64(v.StoreHit(p)-v.PrefillHit(p)))
	})
	preferred := math.Exp(-math.Tanh(r.topology))
	return Pair{Prefill: p, Decode: v.bestDecode(func(d int) float64 {
		cost := float64(v.DecodeContext(d) + v.Prompt())
		if v.DecodeRack(d) == v.PrefillRack(p) {
			cost *= preferred
		}
		return cost
	})}
}

// dynamoActive is the tokens that p is taken to have still to compute: of the
// oldest request only the part that its predicted time leaves.
func dynamoActive(v *View, p int) float64 {
	return float64(v.PrefillTokens(p)) - v.PrefillProgress(p)
}

// bypass is the decode server that computes the prompt itself, by the limits of isl_bounding:
// if it lacks few tokens, and holds a part of the prompt worth having.
func (r *dynamoRouter) bypass(v *View) (int, bool) {
	const (
		fewTokens = 2048
		share     = 0.7 // of the prompt
	)
	if r.local == remoteOnly {
		return 0, false
	}
	d := v.bestDecode(func(d int) float64 {
		if r.local == conditionalHot {
			return -float64(v.DecodeHit(d))
		}
		lacks := v.DecodePrompts(d) + v.Prompt() - v.DecodeHit(d)
		return float64(lacks + v.DecodeContext(d) + v.Prompt())
	})
	lacks := v.Prompt() - v.DecodeHit(d)
	return d, lacks < fewTokens && float64(lacks) < share*float64(v.Prompt())
}

// Add queues a request, unless decode computes its prompt: that is decided before the
// prefill router, and its queue, see the request.
func (r *dynamoRouter) Add(v *View, j *job) {
	v.gateway.viewFor(j)
	if d, ok := r.bypass(v); ok {
		j.pair = Pair{Prefill: Aggregated, Decode: d}
		r.bound = append(r.bound, j)
		return
	}
	least := j.req.Prompt
	for p := range v.Prefills() {
		least = min(least, j.req.Prompt-v.PrefillHit(p))
	}
	r.waiting = append(r.waiting, dynamoWaiting{j, least})
}

func (r *dynamoRouter) Next(v *View) (*job, bool) {
	if len(r.bound) > 0 {
		j := r.bound[0]
		r.bound = r.bound[1:]
		return j, true
	}
	if len(r.waiting) == 0 || !r.free(v) {
		return nil, false
	}
	first := 0
	for i := range r.waiting {
		if r.waiting[i].key < r.waiting[first].key {
			first = i
		}
	}
	j := r.waiting[first].job
	r.waiting = slices.Delete(r.waiting, first, first+1)
	v.gateway.viewFor(j)
	j.pair = r.pair(v)
	return j, true
}

// free reports whether a prefill server has few enough active tokens for another request.
func (r *dynamoRouter) free(v *View) bool {
	for p := range v.Prefills() {
		if dynamoActive(v, p) <= r.threshold*float64(v.hardware().PrefillTokens) {
			return true
		}
	}
	return false
}

// recheck is how often the queue is looked at by time alone, seconds, where active prefill
// wears off (router_queue_recheck_interval in lib/kv-router/src/scheduling/config.rs).
const recheck = 0.1

func (r *dynamoRouter) Wake(v *View) (float64, bool) { return v.now + recheck, len(r.waiting) > 0 }
