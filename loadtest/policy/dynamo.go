package policy

import (
	"math"
	"math/rand/v2"
	"slices"
)

var dynamo = &Policy{
	Name: "dynamo", Kind: Released,
	Source: "ai-dynamo/dynamo docs/components/router/router-concepts.md: active + incoming uncached prefill blocks, then active + incoming decode blocks; decode without overlap credit; queueing off, its default",
	New:    stateless(func(v *View) Pair { return dynamoPair(v, 0) }),
}

// topologyWeight is the weight in the example of Dynamo's topology page.
const topologyWeight = 0.85

var dynamoTopology = &Policy{
	Name: "dynamo-topology", Kind: Released, Optional: true,
	Source: "the same with docs/components/router/topology-aware-kv-transfer.md: domain rack, preferred, weight 0.85: costs in the rack times exp(-tanh(0.85)) (lib/kv-router/src/protocols.rs)",
	New:    stateless(func(v *View) Pair { return dynamoPair(v, topologyWeight) }),
}

// dynamoActive is the tokens that p is taken to have still to compute: of the
// oldest request only the part that its predicted time leaves.
func dynamoActive(v *View, p int) float64 {
	return float64(v.PrefillTokens(p)) - v.PrefillProgress(p)
}

func dynamoPair(v *View, weight float64) Pair {
	p := v.bestPrefill(func(p int) float64 {
		return dynamoActive(v, p) + float64(v.Prompt()-v.PrefillHit(p))
	})
	preferred := math.Exp(-math.Tanh(weight))
	return Pair{Prefill: p, Decode: v.bestDecode(func(d int) float64 {
		cost := float64(v.DecodeContext(d) + v.Prompt())
		if v.DecodeRack(d) == v.PrefillRack(p) {
			cost *= preferred
		}
		return cost
	})}
}

var dynamoQueue = &Policy{
	Name: "dynamo-wspt", Kind: Released, Optional: true,
	Source: "dynamo with --router-queue-threshold 2 (a former default) --router-queue-policy wspt (lib/kv-router/src/scheduling/policy.rs): requests wait while all prefill servers have more than 2 x 8,192 active prefill tokens, fewest new tokens first",
	New:    func(*Scenario, *rand.Rand) any { return &dynamoHeld{threshold: 2} },
}

var dynamoAll = &Policy{
	Name: "dynamo-topology-wspt", Kind: Released, Optional: true,
	Source: "dynamo-topology and dynamo-wspt together",
	New:    func(*Scenario, *rand.Rand) any { return &dynamoHeld{threshold: 2, topology: topologyWeight} },
}

// dynamoHeld is Dynamo's router queue.
type dynamoHeld struct {
	threshold float64 // times the engine's token budget
	topology  float64 // weight of the prefill server's rack
	waiting   []dynamoWaiting
}

type dynamoWaiting struct {
	job *job
	key int // new tokens with the best overlap, as it was on arrival
}

func (q *dynamoHeld) Add(v *View, j *job) {
	v.gateway.viewFor(j)
	least := j.req.Prompt
	for p := range v.Prefills() {
		least = min(least, j.req.Prompt-v.PrefillHit(p))
	}
	q.waiting = append(q.waiting, dynamoWaiting{j, least})
}

func (q *dynamoHeld) Next(v *View) (*job, bool) {
	if len(q.waiting) == 0 {
		return nil, false
	}
	free := false
	for p := range v.Prefills() {
		free = free || dynamoActive(v, p) <= q.threshold*float64(v.hardware().PrefillTokens)
	}
	if !free {
		return nil, false
	}
	first := 0
	for i := range q.waiting {
		if q.waiting[i].key < q.waiting[first].key {
			first = i
		}
	}
	j := q.waiting[first].job
	q.waiting = slices.Delete(q.waiting, first, first+1)
	v.gateway.viewFor(j)
	j.pair = dynamoPair(v, q.topology)
	return j, true
}

func (q *dynamoHeld) Wake(*View) (float64, bool) { return 0, false }
