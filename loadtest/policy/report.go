package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
)

// Schema is the version of the report's JSON. Fields may be added under one
// version; a changed meaning or a lost field makes a new one.
const Schema = 1

// Report is the comparison of policies.
type Report struct {
	Schema    int              `json:"schema"`
	Trace     string           `json:"trace"`
	Seeds     int              `json:"seeds"`
	FirstSeed uint64           `json:"first_seed"`
	Metrics   []MetricAbout    `json:"metrics"` // what the names in it mean
	Scenarios []ScenarioReport `json:"scenarios"`
	Gates     []Gate           `json:"gates"`
	Skipped   []string         `json:"skipped"` // scenarios without their trace
}

// MetricAbout says what a metric is. Without About it is another quantile of the
// one before.
type MetricAbout struct {
	Name  string `json:"name"`
	About string `json:"about,omitempty"`
}

// ScenarioReport is what came of a scenario.
type ScenarioReport struct {
	Name     string `json:"name"`
	Title    string `json:"title"`
	Requests int    `json:"requests"`
	Prefill  int    `json:"prefill_servers"`
	Decode   int    `json:"decode_servers"`
	Racks    int    `json:"racks"`
	Replicas int    `json:"gateway_replicas"`
	SLO      SLO    `json:"slo"`
	// TTFTBound is a mean time to the first token, in seconds, that no policy is below.
	TTFTBound Range `json:"ttft_bound_s"`
	// PairsTTFTBound is one that no policy is below whose decode servers compute no prompts.
	PairsTTFTBound Range        `json:"ttft_pairs_bound_s"`
	bounds         [2]ttftParts // of which those are made, in the mean of the seeds
	// BestReleased is the released policy with the least mean TTFT, whatever options it needs.
	BestReleased string `json:"best_released,omitempty"`
	// BestDefault is the one of them that needs no options that are off by default.
	BestDefault string         `json:"best_default,omitempty"`
	Policies    []PolicyReport `json:"policies"`
}

// PolicyReport is what came of a policy in a scenario.
type PolicyReport struct {
	Name    string           `json:"name"`
	Kind    Kind             `json:"kind"`
	Source  string           `json:"source"`
	Options bool             `json:"options"` // it needs options that are off by default
	bound   float64          // a mean time to the first token, in seconds, that no policy is below on its engines
	Metrics map[string]Range `json:"metrics"` // over the seeds
	Deciles []DecileReport   `json:"deciles"` // tenths of the requests, shortest prompts first
	// Ratios to the best released policy, seed by seed; nil without one.
	Ratios map[string]Range `json:"ratios,omitempty"`
	// DefaultRatios are those to the best one that needs no options.
	DefaultRatios map[string]Range `json:"default_ratios,omitempty"`
}

// DecileReport is a tenth of the requests.
type DecileReport struct {
	Shortest int              `json:"shortest_prompt_tokens"`
	Longest  int              `json:"longest_prompt_tokens"`
	Metrics  map[string]Range `json:"metrics"`
}

// SeedRange says which seeds ran.
func (r *Report) SeedRange() string {
	if r.Seeds == 1 {
		return fmt.Sprintf("seed %d", r.FirstSeed)
	}
	return fmt.Sprintf("seeds %d to %d", r.FirstSeed, r.FirstSeed+uint64(r.Seeds)-1)
}

// WriteJSON writes the report, indented.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(r)
}

func (g *grid) report(cfg Config, skipped []string) *Report {
	r := &Report{Schema: Schema, Trace: strings.Join(cfg.Traces, ","), Seeds: cfg.Seeds, FirstSeed: cfg.seed(0), Skipped: append([]string{}, skipped...)}
	for _, m := range metrics {
		r.Metrics = append(r.Metrics, MetricAbout{m.name, m.about})
	}
	for i, s := range g.scenarios {
		r.Scenarios = append(r.Scenarios, g.scenarioReport(cfg, i, s))
	}
	r.Gates = judge(r)
	return r
}

func (g *grid) scenarioReport(cfg Config, i int, s *Scenario) ScenarioReport {
	sr := ScenarioReport{
		Name: s.Name, Title: s.Title, Requests: len(g.loads[i].trace(cfg.seed(0)).Requests), Prefill: s.Prefill, Decode: s.Decode,
		Racks: s.racks(), Replicas: s.Replicas, SLO: s.SLO,
	}
	for k, p := range cfg.Policies {
		pr := policyReport(p, g.outcomes[i][k])
		pr.bound = g.least[i][k] / float64(cfg.Seeds)
		sr.Policies = append(sr.Policies, pr)
	}
	for k, bound := range []*Range{&sr.TTFTBound, &sr.PairsTTFTBound} {
		*bound, sr.bounds[k] = boundOf(g.bounds[i][k])
	}
	sr.BestReleased = sr.best(func(p *PolicyReport) bool { return p.Kind == Released })
	sr.BestDefault = sr.best(func(p *PolicyReport) bool { return p.Kind == Released && !p.Options })
	for best, p := range cfg.Policies {
		for k := range sr.Policies {
			if p.Name == sr.BestReleased {
				sr.Policies[k].Ratios = ratios(g.outcomes[i][k], g.outcomes[i][best])
			}
			if p.Name == sr.BestDefault {
				sr.Policies[k].DefaultRatios = ratios(g.outcomes[i][k], g.outcomes[i][best])
			}
		}
	}
	return sr
}

// boundOf is the range of a bound over the runs, and the mean of its parts.
func boundOf(runs []ttftParts) (all Range, parts ttftParts) {
	sums := make([]float64, len(runs))
	for run, p := range runs {
		sums[run] = p.sum()
		share := p.scaled(1 / float64(len(runs)))
		parts = ttftParts{parts.Wait + share.Wait, parts.Fresh + share.Fresh, parts.Again + share.Again,
			parts.Beside + share.Beside, parts.Move + share.Move, parts.Step + share.Step}
	}
	return rangeOf(sums), parts
}

// best names the policy with the least mean TTFT among some; empty if there is
// none.
func (s *ScenarioReport) best(among func(p *PolicyReport) bool) string {
	name, least := "", math.Inf(1)
	for i := range s.Policies {
		p := &s.Policies[i]
		if mean := p.Metrics["ttft_mean_s"].Mean; among(p) && mean < least {
			name, least = p.Name, mean
		}
	}
	return name
}

func policyReport(p *Policy, outcomes []*Outcome) PolicyReport {
	pr := PolicyReport{Name: p.Name, Kind: p.Kind, Source: p.Source, Options: p.Optional, Metrics: make(map[string]Range)}
	values := make([]float64, len(outcomes))
	for _, m := range metrics {
		for seed, o := range outcomes {
			values[seed] = m.of(o)
		}
		pr.Metrics[m.name] = rangeOf(values)
	}
	for k := range outcomes[0].Deciles {
		first := &outcomes[0].Deciles[k]
		d := DecileReport{Shortest: first.Shortest, Longest: first.Longest, Metrics: make(map[string]Range)}
		for _, m := range decileMetrics {
			for seed, o := range outcomes {
				values[seed] = m.of(&o.Deciles[k])
			}
			d.Metrics[m.name] = rangeOf(values)
		}
		pr.Deciles = append(pr.Deciles, d)
	}
	return pr
}

// ratios compare a policy's runs with another's on the same seeds.
func ratios(runs, with []*Outcome) map[string]Range {
	of := map[string]func(a, b *Outcome) float64{
		"ttft_mean":   func(a, b *Outcome) float64 { return a.TTFT.Mean / b.TTFT.Mean },
		"ttft_p99":    func(a, b *Outcome) float64 { return a.TTFT.P99 / b.TTFT.P99 },
		"wait_max":    func(a, b *Outcome) float64 { return a.Wait / max(b.Wait, 1e-3) },
		"bytes_moved": func(a, b *Outcome) float64 { return (a.SameRack + a.Cross) / max(b.SameRack+b.Cross, 1) },
		"ttft_p99_worst_decile": func(a, b *Outcome) float64 {
			worst := 0.0
			for k := range a.Deciles {
				if b.Deciles[k].Requests > 0 {
					worst = max(worst, a.Deciles[k].TTFT.P99/b.Deciles[k].TTFT.P99)
				}
			}
			return worst
		},
		"goodput_gain":          func(a, b *Outcome) float64 { return a.Goodput - b.Goodput },
		"goodput_mean_itl_gain": func(a, b *Outcome) float64 { return a.MeanGoodput - b.MeanGoodput },
	}
	all := make(map[string]Range)
	values := make([]float64, len(runs))
	for name, ratio := range of {
		for seed := range runs {
			values[seed] = ratio(runs[seed], with[seed])
		}
		all[name] = rangeOf(values)
	}
	return all
}

// Err says where the gateway as it is by default, with either leg's first token, let a request wait long for a busy server
// while an idle one could have begun it; nil is nowhere. Where no policy keeps up with a load it is not asked: the room for
// KV, or the links, are what all wait for then. Nor are our other policies, which are there to be compared: binding on
// arrival, two of several replicas may send to one server before they hear of each other, and what was sent there stays.
func (r *Report) Err() error {
	var broken []error
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if s.isBeyondAll() {
			continue
		}
		for _, p := range s.Policies {
			share := p.Metrics["idle_wait_share"].Max
			if (p.Name == pieces.Name || p.Name == judged) && share > 1 {
				broken = append(broken, fmt.Errorf("scenario %s, policy %s: a request waited %.1f times as long as it may while a server that could have begun it was idle",
					s.Name, p.Name, share))
			}
		}
	}
	return errors.Join(broken...)
}

// isBeyondAll reports whether no policy keeps up with a load: the least mean time to the first token is a minute.
func (s *ScenarioReport) isBeyondAll() bool {
	best := s.policy(s.best(func(*PolicyReport) bool { return true }))
	return best != nil && best.Metrics["ttft_mean_s"].Mean > 60
}

// Missed says which goals the gateway's default missed, or that none was judged; nil is neither.
func (r *Report) Missed() error {
	if len(r.Gates) == 0 {
		return errors.New("no goal was judged: goals want their scenario, with " + judged + " and released policies")
	}
	var missed []error
	for i := range r.Gates {
		if g := &r.Gates[i]; g.Policy == judged && !g.Reached {
			missed = append(missed, fmt.Errorf("scenario %s: %s is %.3f, and was to be at most %.2f", g.Scenario, g.Measure, g.Value, g.Limit))
		}
	}
	return errors.Join(missed...)
}

// policy returns the report of a policy, nil if it did not run.
func (s *ScenarioReport) policy(name string) *PolicyReport {
	for i := range s.Policies {
		if s.Policies[i].Name == name {
			return &s.Policies[i]
		}
	}
	return nil
}

// scenario returns the report of a scenario, nil if it did not run.
func (r *Report) scenario(name string) *ScenarioReport {
	for i := range r.Scenarios {
		if r.Scenarios[i].Name == name {
			return &r.Scenarios[i]
		}
	}
	return nil
}
