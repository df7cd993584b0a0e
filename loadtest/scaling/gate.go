package scaling

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Gate is a goal: a figure of a policy, mean over the seeds, with a bound.
type Gate struct {
	Scenario string  `json:"scenario"`
	Measure  string  `json:"measure"`
	Value    float64 `json:"value"`
	Least    bool    `json:"at_least"` // the bound is the least, else the most
	Bound    float64 `json:"bound"`
	Reached  bool    `json:"reached"`
}

// judged is the policy that the gates are for, judgedCold the cold start in seconds.
const (
	judged     = "tandem"
	judgedCold = 120.0
)

// goal is a gate without its value. A goal of a policy that did not run is left out.
type goal struct {
	scenario, measure string
	least             bool
	bound             float64
	of                func(ours, static, oracle, rival *Outcome) float64
}

var goals = []goal{
	{"study", "good share", true, 0.94, func(o, _, _, _ *Outcome) float64 { return o.Good }},
	{"study", "replica-hours", false, 20, func(o, _, _, _ *Outcome) float64 { return o.Hours() }},
	{"study", "good share outside bursts", true, 0.95, func(o, _, _, _ *Outcome) float64 { return o.Calm }},
	{"study", "hours to static peak's", false, 0.60, func(o, s, _, _ *Outcome) float64 { return o.Hours() / s.Hours() }},
	{"study", "prefill hours to pure work", false, 1.45, func(o, _, _, _ *Outcome) float64 { return o.PrefillHours / o.PrefillWork }},
	{"study", "hours to the oracle's", false, 1.25, func(o, _, c, _ *Outcome) float64 { return o.Hours() / c.Hours() }},
	{"study", "good share above token-aware-hpa's", true, 0, func(o, _, _, r *Outcome) float64 { return o.Good - r.Good }},
	{"study", "hours to token-aware-hpa's", false, 0.85, func(o, _, _, r *Outcome) float64 { return o.Hours() / r.Hours() }},
	{"study", "recovery in cold starts", false, 1.5, coldStarts},
	{"decode-bound", "good share", true, 0.94, func(o, _, _, _ *Outcome) float64 { return o.Good }},
	{"decode-bound", "good share outside bursts", true, 0.95, func(o, _, _, _ *Outcome) float64 { return o.Calm }},
	{"decode-bound", "hours to static peak's", false, 0.60, func(o, s, _, _ *Outcome) float64 { return o.Hours() / s.Hours() }},
	{"decode-bound", "decode hours to pure work", false, 1.45, func(o, _, _, _ *Outcome) float64 { return o.DecodeHours / o.DecodeWork }},
	{"decode-bound", "recovery in cold starts", false, 1.5, coldStarts},
	{"mix-shift", "good share", true, 0.95, func(o, _, _, _ *Outcome) float64 { return o.Good }},
	{"mix-shift", "recovery in cold starts", false, 2, coldStarts},
	{"stationary", "reversals per hour", false, 2, func(o, _, _, _ *Outcome) float64 { return o.Reversals }},
}

func coldStarts(o, _, _, _ *Outcome) float64 { return *o.Recovery / o.ColdStart }

// judge holds the means of the report against the goals.
func (r *Report) judge() []Gate {
	var gates []Gate
	for _, g := range goals {
		sum, n := 0.0, 0
		for _, o := range r.Outcomes {
			if o.Scenario != g.scenario || o.Policy != judged || o.ColdStart != judgedCold {
				continue
			}
			static, oracle, rival := r.beside(o, staticName), r.beside(o, "oracle"), r.beside(o, "token-aware-hpa")
			if static == nil || oracle == nil || rival == nil {
				continue
			}
			sum, n = sum+g.of(o, static, oracle, rival), n+1
		}
		if n == 0 {
			continue
		}
		value := sum / float64(n)
		gates = append(gates, Gate{
			Scenario: g.scenario, Measure: g.measure, Value: value, Least: g.least, Bound: g.bound,
			Reached: g.least && value >= g.bound || !g.least && value <= g.bound,
		})
	}
	return gates
}

// beside is another policy's outcome of the same run, nil if it did not run.
func (r *Report) beside(o *Outcome, policy string) *Outcome {
	for _, other := range r.Outcomes {
		if other.Policy == policy && other.Scenario == o.Scenario && other.ColdStart == o.ColdStart && other.Seed == o.Seed {
			return other
		}
	}
	return nil
}

func writeGates(out io.Writer, gates []Gate) error {
	if len(gates) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\ngates of %s, cold start %.0f s, means over the seeds\n", judged, judgedCold)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	held := 0
	for _, g := range gates {
		verdict := "missed"
		if g.Reached {
			verdict = "ok"
			held++
		}
		fmt.Fprintf(w, "%s\t%s\t%.3f\t%s %.2f\t%s\n", g.Scenario, g.Measure, g.Value, g.sign(), g.Bound, verdict)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d of %d reached\n", held, len(gates))
	return err
}

func (g Gate) sign() string {
	if g.Least {
		return ">="
	}
	return "<="
}
