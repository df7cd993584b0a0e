package autoscale

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// workload is what servers are asked for on the mean.
type workload struct {
	seen                     bool          // a request came: else the figures stand for none
	prompt, computed, output float64       // tokens
	context                  float64       // tokens of KV of a sequence, as a decode server sees it at any moment
	ttft, itl                time.Duration // objectives; no ttft is 0
	traffic                  demand.Traffic
}

// UnknownKV stands for capacity that engines do not report: then KV decides nothing.
const UnknownKV = 1e15

// Hardware is the units of one role and variant, as they show themselves. A unit is what
// is scaled: a pod or a group of pods, where that is known, else the ranks behind one
// address. Servers of both roles count as decode.
type Hardware struct {
	Variant     string     `json:"variant"`
	Role        pools.Role `json:"role"`
	Ready       int        `json:"ready"`   // units; of elastic engines, ranks
	Engines     int        `json:"engines"` // whose ranks these are, 0 where none is elastic
	Convertible int        `json:"convertible"`
	Speed       float64    `json:"speed"`     // tokens per second of all of them
	KVUsed      float64    `json:"kv_used"`   // tokens that requests hold
	KVTokens    float64    `json:"kv_tokens"` // capacity, 0 if none reports it
	Waiting     float64    `json:"waiting"`   // requests in the engines' own queues
	// Backlog is the seconds that they need for what waits there: of prefill servers the mean
	// of what was sent to them and is not done, of others the answers in the engines' queues.
	Backlog float64 `json:"backlog"`

	prefill curve.Curve // of all servers together, to take the mean of
	step    curve.Curve // likewise
	busy    int         // servers that gateways have sent work, or send none
	servers int
	units   map[string]int // how often each counts
	elastic int            // servers of elastic engines
}

// hardwareOf reads the fleet for a model, in the order of roles and variants.
func hardwareOf(servers []*pools.Server, model string, w workload, now time.Time) []Hardware {
	kinds := make(map[pools.Role]map[string]*Hardware)
	for _, s := range servers {
		h := s.Health()
		if !h.Up || s.Drain || !h.Serves(model) {
			continue
		}
		role := roleOf(s)
		if kinds[role] == nil {
			kinds[role] = make(map[string]*Hardware)
		}
		kind := kinds[role][s.Variant]
		if kind == nil {
			kind = &Hardware{Variant: s.Variant, Role: role, units: make(map[string]int)}
			kinds[role][s.Variant] = kind
		}
		kind.add(s, w, now)
	}
	var all []Hardware
	for _, byVariant := range kinds {
		for _, kind := range byVariant {
			kind.count(w)
			all = append(all, *kind)
		}
	}
	slices.SortFunc(all, func(a, b Hardware) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Variant, b.Variant))
	})
	return all
}

// roleOf is the pool that a server counts for.
func roleOf(s *pools.Server) pools.Role {
	if s.Role == pools.Prefill {
		return pools.Prefill
	}
	return pools.Decode
}

// add enters a server.
func (k *Hardware) add(s *pools.Server, w workload, now time.Time) {
	k.servers++
	if s.Elastic {
		k.elastic++
		k.units[s.UnitName()] += max(1, s.EventRanks)
	} else {
		k.units[s.UnitName()] = 1
	}
	load, work := s.FreshLoad(now), s.InFlight(k.Role, now)
	if work.Requests > 0 || s.Drains() {
		k.busy++
	}
	k.Waiting += load.Waiting.Value // 0 where the engine does not report it
	held := float64(work.Tokens)
	if load.KVTokens.Known {
		k.KVTokens += load.KVTokens.Value
		if load.KVUsed.Known {
			held = max(held, load.KVUsed.Value*load.KVTokens.Value)
		}
	}
	k.KVUsed += held
	for i := range k.prefill {
		k.prefill[i] += s.PrefillCurve()[i]
		k.step[i] += s.StepCurve()[i]
	}
	if k.Role == pools.Prefill {
		k.Backlog += work.Queue.Seconds()
		k.Speed += w.computed / s.PrefillCurve().Seconds(curve.PrefillFeatures(int(w.computed), int(w.prompt-w.computed)))
		return
	}
	if s.Role == pools.Both {
		k.Convertible++
	}
	c := sizing.Capacity{Step: s.StepCurve(), KVTokens: int(UnknownKV)}
	if load.KVTokens.Known && load.KVTokens.Value > 0 {
		c.KVTokens = int(load.KVTokens.Value)
	}
	k.Speed += c.DecodeSpeed(w.itl, w.context)
}

// count sums up the units.
func (k *Hardware) count(w workload) {
	if k.Role == pools.Prefill {
		k.Backlog /= float64(k.servers)
	} else if k.Speed > 0 {
		k.Backlog = k.Waiting * w.output / k.Speed
	}
	for _, n := range k.units {
		k.Ready += n
	}
	if k.elastic == k.servers {
		k.Engines = len(k.units)
	}
}

// Prefills reports whether the units prefill only.
func (k *Hardware) Prefills() bool { return k.Role == pools.Prefill }

// Teach makes what units have shown the capacity of one. A unit of several servers does as
// many prompts, or sequences, at once.
func (k *Hardware) Teach(c *sizing.Capacity) {
	each, parallel := 1/float64(k.servers), float64(k.servers)/float64(k.Ready)
	if k.Prefills() {
		for i := range c.Prefill {
			c.Prefill[i] = k.prefill[i] * each / parallel
		}
		return
	}
	c.Step = curve.Curve{k.step[0] * each, k.step[1] * each / parallel, k.step[2] * each / parallel}
	if k.KVTokens > 0 {
		c.KVTokens = int(k.KVTokens / float64(k.Ready))
	}
}

// poolState is the state of a model's servers at one moment.
type poolState struct {
	prefill, decode sizing.Pool
	prefillSpeed    float64 // prompt tokens per second of a unit, 0 if no server shows it
	decodeSpeed     float64 // output tokens per second of a unit
	kvCapacity      float64 // tokens of a unit
	kv              float64 // tokens that requests hold on decode servers
	decodeWaiting   float64 // requests in the queues of servers that only decode
	idlePrefill     int     // prefill servers that have no work, and might
}

// sumUp joins what all hardware shows.
func sumUp(all []Hardware) poolState {
	var g poolState
	for i := range all {
		k := &all[i]
		if k.Role == pools.Prefill {
			g.prefill.Ready += k.Ready
			g.prefillSpeed += k.Speed
			g.idlePrefill += k.servers - k.busy
			continue
		}
		g.decode.Ready += k.Ready
		g.decode.Convertible += k.Convertible
		g.decodeSpeed += k.Speed
		g.kvCapacity += k.KVTokens
		g.kv += k.KVUsed
		if k.Convertible == 0 { // else they may wait for their prompts
			g.decodeWaiting += k.Waiting
		}
	}
	if g.prefill.Ready > 0 {
		g.prefillSpeed /= float64(g.prefill.Ready)
	}
	if g.decode.Ready > 0 {
		g.decodeSpeed /= float64(g.decode.Ready)
		g.kvCapacity /= float64(g.decode.Ready)
		if g.kvCapacity == 0 {
			g.kvCapacity = UnknownKV
		}
	}
	return g
}
