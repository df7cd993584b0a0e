package scaling

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// Hardware is the server that both roles are made of.
type Hardware struct {
	PrefillSpeed float64 `json:"prefill_tokens_per_second"`
	KV           float64 `json:"kv_tokens"`               // of a decode server
	Base         float64 `json:"step_seconds"`            // of a decode step
	PerSequence  float64 `json:"step_seconds_per_seq"`    // added by each sequence
	PerContext   float64 `json:"step_seconds_per_kv_tok"` // added by each token of context
}

// step is the time of a decode step in seconds.
func (h *Hardware) step(sequences, context float64) float64 {
	return h.Base + h.PerSequence*sequences + h.PerContext*context
}

// sequences is the most that a decode server takes at a mean context: those with
// steps within itl, and with room for their KV.
func (h *Hardware) sequences(itl, context float64) float64 {
	within := (itl - h.Base) / (h.PerSequence + h.PerContext*context)
	return max(1, min(within, h.KV/context))
}

// usualPrompt is the length in tokens at which a measured prefill gives its speed: the
// mean uncached prompt of Mooncake's trace.
const usualPrompt = 7500

// HardwareOf is the server that was measured.
func HardwareOf(c *sizing.Capacity) Hardware {
	return Hardware{
		PrefillSpeed: c.PrefillSpeed(usualPrompt, 0), KV: float64(c.KVTokens),
		Base: c.Step[0], PerSequence: c.Step[1], PerContext: c.Step[2] / 1e6,
	}
}

// Burst multiplies the load for a time. Times are in seconds.
type Burst struct {
	From    float64 `json:"from_s"`
	Seconds float64 `json:"seconds"`
	Factor  float64 `json:"factor"`
}

// Scenario is a load and what it must be served with. Times are in seconds.
type Scenario struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Hardware Hardware `json:"hardware"`
	Seconds  float64  `json:"seconds"`

	Low, High   float64 // factor of the trace at both ends and in the middle
	Stationary  bool    // arrivals are evenly random, at High
	Bursts      []Burst
	IdleEvery   float64 // the last IdleSeconds of every such time have no arrivals; 0: none
	IdleSeconds float64
	ShiftAt     float64 // from here on lengths change by the two below; 0: never
	ShiftPrompt float64
	ShiftOutput float64

	PromptFactor, OutputFactor float64 // of all lengths

	// A request is good when its first token comes within Wait and the time of its
	// own prefill alone, and its later ones at TPOT on the mean.
	Wait float64 `json:"wait_s"`
	TPOT float64 `json:"tpot_s"`
}

// studyHardware: prefill is Qwen3-32B on two H100 (llm-d's keda-epp-token-aware
// guide); decode is set so that a step of 64 sequences of 5,000 tokens takes 23 ms.
var studyHardware = Hardware{PrefillSpeed: 15928, KV: 350_000, Base: 0.010, PerSequence: 50e-6, PerContext: 30e-9}

// Scenarios are those that ship, in the order of the report. The first is the load
// that the goals were set on: two hours, an arch of 0.6 to 4 times the trace, and a
// burst as short as a cold start.
func Scenarios() []*Scenario {
	study := Scenario{
		Name: "study", Title: "an arch of 0.6 to 4 times the trace, and a burst of 2.2 times for two minutes",
		Hardware: studyHardware, Seconds: 7200, Low: 0.6, High: 4,
		Bursts:       []Burst{{From: 2430, Seconds: 120, Factor: 2.2}},
		PromptFactor: 1, OutputFactor: 1, Wait: 4, TPOT: 0.040,
	}
	variant := func(name, title string, change func(*Scenario)) *Scenario {
		s := study
		s.Name, s.Title = name, title
		change(&s)
		return &s
	}
	return []*Scenario{
		&study,
		variant("decode-bound", "short prompts, answers of 2,000 tokens: the time per token binds", func(s *Scenario) {
			s.PromptFactor, s.OutputFactor, s.TPOT = 0.125, 6, 0.020
		}),
		variant("mix-shift", "after an hour prompts are a quarter and answers five times as long", func(s *Scenario) {
			s.Bursts, s.ShiftAt, s.ShiftPrompt, s.ShiftOutput = nil, 3600, 0.25, 5
		}),
		variant("idle-gaps", "five minutes without a request in every half hour", func(s *Scenario) {
			s.Bursts, s.IdleEvery, s.IdleSeconds = nil, 1800, 300
		}),
		variant("stationary", "evenly random arrivals at twice the trace", func(s *Scenario) {
			s.Bursts, s.Stationary, s.High = nil, true, 2
		}),
	}
}

// FindScenarios returns those named, all for "all".
func FindScenarios(names []string) ([]*Scenario, error) {
	all := Scenarios()
	if slices.Contains(names, "all") {
		return all, nil
	}
	var found []*Scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s *Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("scenario %s: want one of %s", name, strings.Join(ScenarioNames(), ", "))
		}
		found = append(found, all[i])
	}
	return found, nil
}

// ScenarioNames are the names of the shipped scenarios.
func ScenarioNames() []string {
	var names []string
	for _, s := range Scenarios() {
		names = append(names, s.Name)
	}
	return names
}
