package scaling

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pd/order"
)

// sizeFunc turns a view into wanted servers, fractions of which an HPA rounds.
type sizeFunc func(v *view) (prefill, decode float64)

// Policy is a way to scale both pools.
type Policy struct {
	Name   string
	Source string // where its rule is published
	Ours   bool
	// Objective is what the gateway's own order serves for; empty: first come, first
	// served, whether or not decode has room.
	Objective order.Objective
	Convert   bool // the gateway lets decode servers compute prompts when the others are busy

	prefill, decode behaviour
	size            func(p *runFacts) sizeFunc
}

// runFacts is what a policy may know before a run: the static one and the oracle more
// than a policy could.
type runFacts struct {
	scenario  *Scenario
	coldStart float64
	peak      [2]int // servers that serve the whole load well
	work      work
	planner   sizing.Planner
}

// Policies are all that are compared, in the order of the report.
func Policies() []Policy {
	return []Policy{
		{
			Name: staticName, Source: "the fewest servers that keep 99.5 % of the requests good all the time",
			prefill: exactBehaviour, decode: exactBehaviour,
			size: func(p *runFacts) sizeFunc {
				return func(*view) (float64, float64) { return float64(p.peak[0]), float64(p.peak[1]) }
			},
		},
		{
			Name: "hpa-waiting", Source: "waiting requests, 5 a server (vllm-project/production-stack, tutorials/assets/keda-scaled-object.yaml)",
			prefill: hpaDefault, decode: hpaDefault,
			size: func(*runFacts) sizeFunc {
				return func(v *view) (float64, float64) { return float64(v.queued) / 5, float64(v.decodeWaiting) / 5 }
			},
		},
		{
			Name: "hpa-in-flight", Source: "requests in flight, 2 a prefill and 16 a decode server",
			prefill: hpaDefault, decode: hpaDefault,
			size: func(*runFacts) sizeFunc {
				return func(v *view) (float64, float64) { return float64(v.inPrefill) / 2, float64(v.inDecode) / 16 }
			},
		},
		{
			Name: "token-aware", Source: "in-flight prompt tokens over speed, 1.5 s a server; sum of KV use, 0.8 a server; as shipped (llm-d/llm-d, keda-epp-token-aware)",
			prefill: tokenAware, decode: tokenAware, size: askTokenAware,
		},
		{
			Name: "token-aware-hpa", Source: "the same signal with the HPA's default behaviour",
			prefill: hpaDefault, decode: hpaDefault, size: askTokenAware,
		},
		{
			Name: "token-aware-throughput", Source: "token-aware as shipped, behind a gateway whose order is for throughput", Objective: order.Throughput,
			prefill: tokenAware, decode: tokenAware, size: askTokenAware,
		},
		{
			Name: "tandem-arrival", Source: "autoscale.Planner, first come first served", Ours: true,
			prefill: exactBehaviour, decode: exactBehaviour, size: askPlanner,
		},
		{
			Name: "tandem-latency", Source: "with the gateway's order, for latency", Ours: true, Objective: order.Latency,
			prefill: exactBehaviour, decode: exactBehaviour, size: askPlanner,
		},
		{
			Name: "tandem-auto", Source: "with the gateway's order as by default: all have an objective for the first token, and requests that cannot meet it any more go last", Ours: true, Objective: order.Auto,
			prefill: exactBehaviour, decode: exactBehaviour, size: askPlanner,
		},
		{
			Name: "tandem", Source: "and with decode servers that may compute prompts", Ours: true, Objective: order.Auto, Convert: true,
			prefill: exactBehaviour, decode: exactBehaviour, size: askPlanner,
		},
		{
			Name: "oracle", Source: "the load of the next cold start, known in advance",
			prefill: exactBehaviour, decode: exactBehaviour, size: askOracle,
		},
	}
}

// tokenAware is the behaviour that llm-d ships with the signal: one pod up in three
// minutes, one down in five.
var tokenAware = behaviour{tolerance: 0.1, upPods: 1, upPeriod: 180, downPods: 1, downPeriod: 300, downWindow: 300}

func askTokenAware(*runFacts) sizeFunc {
	return func(v *view) (float64, float64) {
		return v.prefillTokens / v.scenario.Hardware.PrefillSpeed / 1.5, v.kvShare / 0.8
	}
}

// askPlanner asks what the planner that the gateway runs wants.
func askPlanner(p *runFacts) sizeFunc {
	planner, memory := p.planner, sizing.Memory{}
	return func(v *view) (float64, float64) {
		var plan sizing.Plan
		plan, memory = planner.Plan(v.signals(), memory, controlEvery)
		if !plan.Known {
			return float64(v.prefillReady + v.prefillPending), float64(v.decodeReady + v.decodePending)
		}
		return float64(plan.Prefill.Servers), float64(plan.Decode.Servers)
	}
}

// signals are the view in the planner's words.
func (v *view) signals() sizing.Signals {
	h := &v.scenario.Hardware
	sequences := min(h.sequences(v.scenario.TPOT, v.context), h.KV/v.kvOfEach)
	s := sizing.Signals{
		Prompt: v.prompt, Output: v.output, KV: v.held,
		PrefillBacklog: v.queuedTokens, DecodeBacklog: v.outputWaiting,
		PrefillSpeed: h.PrefillSpeed,
		DecodeSpeed:  sequences / h.step(sequences, sequences*v.context),
		KVCapacity:   h.KV,
		Prefill:      sizing.Pool{Ready: v.prefillReady, Pending: v.prefillPending},
		Decode:       sizing.Pool{Ready: v.decodeReady, Pending: v.decodePending},
		ColdStart:    time.Duration(v.coldStart * float64(time.Second)),
	}
	if v.full {
		s.PrefillBacklog, s.DecodeBacklog = 0, s.DecodeBacklog+float64(v.queued)*v.meanOutput
	}
	if v.convert {
		s.Decode.Convertible = v.decodeReady
	}
	return s
}

// askOracle wants what the load needs from now until servers that start now help.
func askOracle(p *runFacts) sizeFunc {
	return func(v *view) (float64, float64) {
		until := v.now + p.coldStart + 2*controlEvery.Seconds()
		return p.work.most(p.work.prefill, v.now, until) / 0.95, p.work.most(p.work.decode, v.now, until) / 0.95
	}
}

// work is how many servers a load keeps busy, in bins of binSeconds.
type work struct{ prefill, decode []float64 }

func (w *work) most(of []float64, from, until float64) float64 {
	first := min(int(from/binSeconds), len(of)-1)
	last := min(int(math.Ceil(until/binSeconds)), len(of))
	return slices.Max(of[first:max(last, first+1)])
}

// FindPolicies returns those named, all for "all".
func FindPolicies(names []string) ([]Policy, error) {
	all := Policies()
	if slices.Contains(names, "all") {
		return all, nil
	}
	var found []Policy
	for _, name := range names {
		i := slices.IndexFunc(all, func(p Policy) bool { return p.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("policy %s: want one of %s", name, strings.Join(PolicyNames(), ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

// PolicyNames are the names of all policies.
func PolicyNames() []string {
	var names []string
	for _, p := range Policies() {
		names = append(names, p.Name)
	}
	return names
}
