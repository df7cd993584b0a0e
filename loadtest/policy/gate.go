package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Gate is a goal that we set ourselves, and where we stand.
type Gate struct {
	Scenario string  `json:"scenario"`
	Policy   string  `json:"policy"` // ours
	Against  string  `json:"against,omitempty"`
	Options  bool    `json:"against_options,omitempty"` // that one needs options that are off by default
	Measure  string  `json:"measure"`
	Limit    float64 `json:"limit"` // at most
	Value    float64 `json:"value"`
	// Bound is the value that no policy is below, where that is known; 0: it is not.
	Bound   float64 `json:"bound,omitempty"`
	Reached bool    `json:"reached"`
}

// judged is the policy that the goals are for, what the gateway does by default: a miss of it is an error with --goals.
const judged = "tandem"

// reported are the policies of which is said where they stand: bound late, in pieces, and with prefill's first token.
var reported = []string{"tandem-late", "tandem-pieces", judged}

// What a goal is held against; any other name is that of a policy.
const (
	bestReleased = "best released" // the least mean TTFT of the released policies, with all options
	bestDefault  = "best default"  // the same of those without options that are off by default
	oneGateway   = "one gateway"   // itself in the scenario without the 3 at the end of its name
	itself       = ""              // nothing: the value is absolute
)

// goal is one of ours: a measure of a scenario, as a share of something's, is at most so much.
type goal struct {
	scenario, against, measure string
	limit                      float64
}

// goals are those for the order of service on the conversation trace, those for agents, and
// where it may not be worse.
func goals() []goal {
	var all []goal
	add := func(against, measure string, limits map[string]float64) {
		for _, scenario := range slices.Sorted(maps.Keys(limits)) {
			all = append(all, goal{scenario, against, measure, limits[scenario]})
		}
	}
	study := []string{"A", "B", "C", "D", "E", "G"}
	add(bestReleased, "ttft_mean", map[string]float64{
		"A": 0.95, "B": 0.92, "C": 0.85, "D": 0.85, "E": 0.85, "G": 0.90, "overload": 1,
		"agents-035": 1.05, "agents-06": 0.90, "agents-10": 1, "bimodal": 0.76, "flash": 0.92,
	})
	for _, trace := range GeneratedTraces() {
		add(bestReleased, "ttft_mean", alike(0.90, trace+"/B", trace+"/C", trace+"/G"))
	}
	add(dynamoAll.Name, "ttft_mean", map[string]float64{"bimodal": 0.70, "flash": 0.78})
	add(bestReleased, "ttft_p99", alike(1.05, study...))
	add(bestReleased, "wait_max", alike(1.05, study...))
	add(bestReleased, "goodput_loss", alike(0, study...))
	add(dynamo.Name, "ttft_mean", map[string]float64{"A": 0.85, "B": 0.60, "C": 0.46, "G": 0.33})
	add(bestDefault, "ttft_mean", map[string]float64{
		"D": 0.80, "E": 0.88, "A3": 1, "B3": 0.80, "C3": 0.65, "D3": 0.90, "E3": 0.95, "G3": 0.50,
	})
	add(bestDefault, "ttft_p99_worst_decile", alike(1.10, study...))
	add(oneGateway, "ttft_mean", alike(1.05, "A3", "B3", "C3", "D3", "E3", "G3"))
	add(leastLoad.Name, "itl_p99", alike(1.05, "A", "B", "D", "G", "A3", "B3", "D3", "G3"))
	add(leastLoad.Name, "itl_p99", alike(1.10, "E", "E3")) // protected caches make batches uneven: EXPERIMENTS.md
	add(leastLoad.Name, "itl_p99", alike(1.15, "C", "C3"))
	add(itself, "cross_rack_share", map[string]float64{"B": 0.10})
	add(itself, "wait_max_s", map[string]float64{"agents-06": 25})
	add(itself, "idle_wait_share", alike(1, "agents-035", "agents-06", "agents-10"))
	robust := []string{"half-slow", "noise-03", "noise-06", "old-gauges", "lost-events", "decode-bound", "lockstep"}
	add(bestReleased, "ttft_mean", alike(1.03, robust...))
	add(bestReleased, "ttft_p99", alike(1.10, append(robust, "overload")...))
	return all
}

func alike(limit float64, scenarios ...string) map[string]float64 {
	limits := make(map[string]float64)
	for _, s := range scenarios {
		limits[s] = limit
	}
	return limits
}

// judge compares the report with the goals, scenario by scenario; those whose policies did not
// run are left out.
func judge(r *Report) []Gate {
	gates := []Gate{}
	for i := range r.Scenarios {
		for _, goal := range goals() {
			if goal.scenario != r.Scenarios[i].Name {
				continue
			}
			for _, name := range reported {
				if gate, ok := r.gate(goal, &r.Scenarios[i], name); ok {
					gates = append(gates, gate)
				}
			}
		}
	}
	return gates
}

// gate judges one goal of a policy of ours, false where what it needs did not run.
func (r *Report) gate(goal goal, s *ScenarioReport, name string) (Gate, bool) {
	ours := s.policy(name)
	if ours == nil {
		return Gate{}, false
	}
	gate := Gate{Scenario: s.Name, Policy: name, Measure: goal.measure, Limit: goal.limit, Against: goal.against}
	ok := true
	switch goal.against {
	case itself: // the worst of the seeds, which a mean would hide
		gate.Value = ours.Metrics[goal.measure].Max
	case oneGateway:
		one := r.scenario(strings.TrimSuffix(s.Name, "3"))
		ok = one != nil && gate.compareMeans(ours, one.policy(name))
	case bestReleased:
		ok = gate.compareSeeds(ours.Ratios, s.policy(s.BestReleased))
	case bestDefault:
		ok = gate.compareSeeds(ours.DefaultRatios, s.policy(s.BestDefault))
	default:
		ok = gate.compareMeans(ours, s.policy(goal.against))
	}
	gate.Reached = gate.Value <= gate.Limit
	if rival := s.policy(gate.Against); rival != nil && goal.measure == "ttft_mean" {
		gate.Bound = ours.bound / rival.Metrics["ttft_mean_s"].Mean
	}
	return gate, ok
}

// compareSeeds takes the ratio to a rival that was worked out seed by seed; false without one.
func (g *Gate) compareSeeds(ratios map[string]Range, rival *PolicyReport) bool {
	if rival == nil {
		return false
	}
	g.Against, g.Options, g.Value = rival.Name, rival.Options, ratios[g.Measure].Mean
	if g.Measure == "goodput_loss" {
		g.Value = -ratios["goodput_gain"].Mean
	}
	return true
}

// compareMeans compares a time in seconds, mean over the seeds with mean; false without a rival.
func (g *Gate) compareMeans(ours, rival *PolicyReport) bool {
	if rival == nil {
		return false
	}
	g.Value = ours.Metrics[g.Measure+"_s"].Mean / rival.Metrics[g.Measure+"_s"].Mean
	return true
}

// String says the gate in one line.
func (g Gate) String() string {
	mark := "no "
	if g.Reached {
		mark = "yes"
	}
	against := ""
	if g.Against != "" {
		against = " of " + g.Against
	}
	if g.Options {
		against += ", its options on"
	}
	bound := ""
	if g.Bound > 0 {
		bound = fmt.Sprintf(" (no policy is below %.3f)", g.Bound)
	}
	return fmt.Sprintf("%s  %-13s %-13s %-22s %6.3f  at most %.2f%s%s", mark, g.Policy, g.Scenario, g.Measure, g.Value, g.Limit, against, bound)
}
