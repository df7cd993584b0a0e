package policy

import (
	"cmp"
	"fmt"
	"html"
	"html/template"
	"slices"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// numbered is a policy with the number that its dots have in the overview.
type numbered struct {
	Number int
	Name   string
	Kind   Kind
}

// numberPolicies numbers all policies of a report from 1, by kind and then as they were run.
func numberPolicies(r *Report) (all []numbered) {
	for _, kind := range []Kind{Ours, Released, Published, Baseline, Reference} {
		for i := range r.Scenarios {
			for _, p := range r.Scenarios[i].Policies {
				if p.Kind == kind && p.Ratios != nil && !slices.ContainsFunc(all, func(n numbered) bool { return n.Name == p.Name }) {
					all = append(all, numbered{Number: len(all) + 1, Name: p.Name, Kind: kind})
				}
			}
		}
	}
	return all
}

// Measures of the dots, in pixels.
const (
	dotRadius  = 8.0
	laneHeight = 2*dotRadius + 1
)

// laneDot is a policy in the overview: dots that would cover each other stand in lanes, 0 in the
// middle, negative above it.
type laneDot struct {
	policy *PolicyReport
	x      float64
	lane   int
}

// placeDots finds a lane for each policy of a scenario, the nearest to the middle that is free.
func placeDots(s *ScenarioReport, x logScale) (dots []laneDot, lanes int) {
	for k := range s.Policies {
		if p := &s.Policies[k]; p.Ratios != nil {
			dots = append(dots, laneDot{policy: p, x: x.at(p.Ratios["ttft_mean"].Mean)})
		}
	}
	slices.SortStableFunc(dots, func(a, b laneDot) int { return cmp.Compare(a.x, b.x) })
	lanes = 1
	for i := range dots {
		for step := 0; ; step++ {
			lane := (step + 1) / 2 * (1 - step%2*2) // 0, -1, 1, -2, 2 ...
			free := !slices.ContainsFunc(dots[:i], func(p laneDot) bool { return p.lane == lane && dots[i].x-p.x < laneHeight })
			if free {
				dots[i].lane, lanes = lane, max(lanes, 2*max(lane, -lane)+1)
				break
			}
		}
	}
	return dots, lanes
}

// overviewChart is a row of numbered dots for each scenario: mean TTFT over that of the best
// released policy.
func overviewChart(r *Report) template.HTML {
	const side, top, head = 24.0, 26.0, 24.0 // above the dots of a row stands what it is
	d := &drawing{svg.Drawing{Width: 760, Height: top + 10}}
	x := ratioScale(r)
	x.start, x.length = side, d.Width-2*side
	rows := make([][]laneDot, len(r.Scenarios))
	heights := make([]float64, len(r.Scenarios))
	for i := range r.Scenarios {
		var lanes int
		rows[i], lanes = placeDots(&r.Scenarios[i], x)
		heights[i] = head + laneHeight*float64(lanes) + 8
		d.Height += heights[i]
	}
	for _, t := range []float64{0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10} {
		if t < x.from || t > x.to {
			continue
		}
		class := "grid"
		if t == 1 {
			class = "one"
		}
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" class="%s"/>`, x.at(t), x.at(t), top-6, d.Height-8, class)
		d.Text(x.at(t), top-11, "middle", "soft", fmt.Sprintf("%g", t))
	}
	numbers := make(map[string]int)
	for _, n := range numberPolicies(r) {
		numbers[n.Name] = n.Number
	}
	y := top
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		d.Add(`<line x1="0" x2="%.0f" y1="%.1f" y2="%.1f" class="grid"/>`, d.Width, y, y)
		d.Text(0, y+16, "start", "scenario", s.Name)
		d.Text(d.Width, y+16, "end", "soft", "1: "+s.BestReleased)
		middle := y + head + (heights[i]-head)/2
		for _, p := range rows[i] {
			d.dot(x, middle+laneHeight*float64(p.lane), p, numbers[p.policy.Name])
		}
		y += heights[i]
	}
	return d.HTML("mean TTFT over that of the best released policy, by scenario")
}

// ratioScale spans the ratios of all policies, from a tenth to ten at most.
func ratioScale(r *Report) logScale {
	least, most := 1.0, 1.0
	for i := range r.Scenarios {
		for _, p := range r.Scenarios[i].Policies {
			if p.Ratios != nil {
				least, most = min(least, p.Ratios["ttft_mean"].Mean), max(most, p.Ratios["ttft_mean"].Mean)
			}
		}
	}
	return logScale{from: max(0.1, least/1.1), to: min(10, most*1.1)}
}

func (d *drawing) dot(x logScale, y float64, at laneDot, number int) {
	p := at.policy
	ratio := p.Ratios["ttft_mean"]
	d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="%s" stroke-width="2"/>`, x.at(ratio.Min), x.at(ratio.Max), y, y, p.Kind)
	d.Add(`<g><circle cx="%.1f" cy="%.1f" r="%.0f" class="%s"/><title>%s: %.2f (%.2f to %.2f), mean %.2f s</title>`,
		at.x, y, dotRadius, p.Kind, html.EscapeString(p.Name), ratio.Mean, ratio.Min, ratio.Max, p.Metrics["ttft_mean_s"].Mean)
	d.Text(at.x, y+3.5, "middle", "number "+string(p.Kind), fmt.Sprint(number))
	d.Add(`</g>`)
}
