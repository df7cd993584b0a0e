package policy

import (
	"fmt"
	"html/template"
	"math"
	"strings"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// drawing is a chart of a report.
type drawing struct{ svg.Drawing }

// logScale maps values between two bounds to a length.
type logScale struct{ from, to, start, length float64 }

func (s logScale) at(v float64) float64 {
	v = math.Min(math.Max(v, s.from), s.to)
	return s.start + s.length*math.Log(v/s.from)/math.Log(s.to/s.from)
}

// ticks are 1, 2 and 5 times powers of ten within the bounds.
func (s logScale) ticks() []float64 {
	var all []float64
	for power := math.Floor(math.Log10(s.from)); power <= math.Log10(s.to); power++ {
		for _, k := range []float64{1, 2, 5} {
			if v := k * math.Pow(10, power); v >= s.from*0.999 && v <= s.to*1.001 {
				all = append(all, v)
			}
		}
	}
	return all
}

// barChart is the TTFT of each policy of a scenario.
func barChart(s ScenarioReport) template.HTML {
	const left, right, row, top = 182.0, 56.0, 21.0, 22.0
	d := &drawing{svg.Drawing{Width: 592, Height: top + row*float64(len(s.Policies)) + 8}}
	least, most := math.Inf(1), 0.0
	for _, p := range s.Policies {
		least, most = min(least, p.Metrics["ttft_p50_s"].Mean), max(most, p.Metrics["ttft_p99_s"].Mean)
	}
	x := logScale{from: least / 1.5, to: most * 1.1, start: left, length: d.Width - left - right}
	d.axis(x, top)
	d.Text(d.Width-4, top-8, "end", "soft", "mean")
	for i, p := range s.Policies {
		y := top + row*(float64(i)+0.5)
		mean := p.Metrics["ttft_mean_s"]
		d.Text(left-10, y+4, "end", "", p.Name)
		d.Add(`<rect x="%.1f" y="%.1f" width="%.1f" height="11" class="%s" fill-opacity="0.55" stroke-width="1"/>`, left, y-5.5, x.at(mean.Mean)-left, p.Kind)
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="currentColor" stroke-width="2"/>`, x.at(mean.Min), x.at(mean.Max), y, y)
		p50 := x.at(p.Metrics["ttft_p50_s"].Mean)
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="currentColor"/>`, p50, p50, y-5.5, y+5.5)
		p99 := x.at(p.Metrics["ttft_p99_s"].Mean)
		d.Add(`<circle cx="%.1f" cy="%.1f" r="3.5" class="%s"/>`, p99, y, p.Kind)
		d.Text(d.Width-4, y+4, "end", "soft", fmt.Sprintf("%.2f", mean.Mean))
	}
	return d.HTML("TTFT by policy")
}

// axis draws vertical lines at the ticks, not too close to each other.
func (d *drawing) axis(x logScale, top float64) {
	last := math.Inf(-1)
	for _, t := range x.ticks() {
		if x.at(t)-last < 30 {
			continue
		}
		last = x.at(t)
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" class="grid"/>`, last, last, top-4, d.Height-6)
		d.Text(last, top-8, "middle", "soft", fmt.Sprintf("%g", t))
	}
}

// decileChart is the p99 of TTFT by prompt length, of the best released policy and
// of ours that are judged.
func decileChart(s ScenarioReport) template.HTML {
	const left, top, bottom = 46.0, 30.0, 44.0
	d := &drawing{svg.Drawing{Width: 480, Height: 300}}
	names := []string{s.BestReleased, arrival.Name, judged}
	var shown []*PolicyReport
	least, most := math.Inf(1), 0.0
	for _, name := range names {
		p := s.policy(name)
		if p == nil {
			continue
		}
		shown = append(shown, p)
		for _, decile := range p.Deciles {
			if v := decile.Metrics["ttft_p99_s"].Mean; v > 0 {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if len(shown) == 0 || most == 0 {
		return ""
	}
	y := logScale{from: least / 1.2, to: most * 1.2, start: d.Height - bottom, length: -(d.Height - bottom - top)}
	for _, t := range y.ticks() {
		d.Add(`<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f" class="grid"/>`, left, d.Width-10, y.at(t), y.at(t))
		d.Text(left-6, y.at(t)+4, "end", "soft", fmt.Sprintf("%g", t))
	}
	at := func(k int) float64 { return left + (float64(k)+0.5)*(d.Width-left-10)/10 }
	for k, decile := range shown[0].Deciles {
		d.Text(at(k), d.Height-bottom+18+float64(k%2)*14, "middle", "soft", fmt.Sprintf("%d", decile.Longest))
	}
	legend := left
	for i, p := range shown {
		d.lineOf(p, at, y, i == 1)
		d.Add(`<circle cx="%.1f" cy="12" r="4" class="%s"/>`, legend+4, p.Kind)
		d.Text(legend+13, 16, "start", "", p.Name)
		legend += 30 + 7*float64(len(p.Name))
	}
	return d.HTML("p99 of TTFT by prompt length")
}

// lineOf draws a policy's p99 over the deciles.
func (d *drawing) lineOf(p *PolicyReport, at func(int) float64, y logScale, dashed bool) {
	var points []string
	for k, decile := range p.Deciles {
		v := decile.Metrics["ttft_p99_s"].Mean
		if v <= 0 {
			continue
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", at(k), y.at(v)))
		d.Add(`<circle cx="%.1f" cy="%.1f" r="3" class="%s"/>`, at(k), y.at(v), p.Kind)
	}
	dash := ""
	if dashed {
		dash = ` stroke-dasharray="4 3"` // the other of ours
	}
	d.Add(`<polyline points="%s" class="%s" style="fill:none" stroke-width="2"%s/>`, strings.Join(points, " "), p.Kind, dash)
}
