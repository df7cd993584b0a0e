package policy

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// pictured is how many scenarios a picture shows at most, each in a panel.
const pictured = 3

// pictureStyle colours the points by the kinds of policies, on light and on dark pages.
const pictureStyle = `<style>
svg{font:12px system-ui,sans-serif;background:#fff;color:#1f2328} text{fill:#1f2328} .soft{fill:#656d76} .title{font-weight:600;font-size:13px}
.grid{stroke:#d0d7de} .axis{stroke:#656d76} .lead{stroke:#afb8c1;fill:none;stroke-width:.7} circle{stroke:#fff}
.baseline,.published,.reference{fill:#8c959f} .released{fill:#bc4c00} .ours{fill:#0969da} text.ours{font-weight:600}
@media (prefers-color-scheme: dark){svg{background:#0d1117} text{fill:#e6edf3} .soft{fill:#9198a1} .grid{stroke:#30363d} circle{stroke:#0d1117} .released{fill:#f0883e} .ours{fill:#58a6ff}}
</style>`

// Picture is the policies of the first scenarios of a report as points of an SVG: the mean time to
// the first token to the right, the share of requests of which the first token and every gap were in
// time upwards. A policy is better than all that are below it and to its right.
func Picture(r *Report) []byte {
	const left, top, width, height, gap = 52.0, 46.0, 250.0, 260.0, 250.0
	shown := r.Scenarios[:min(pictured, len(r.Scenarios))]
	d := &drawing{svg.Drawing{Width: left + float64(len(shown))*(width+gap), Height: top + height + 52}}
	for i := range shown {
		d.panel(&shown[i], left+float64(i)*(width+gap), top, width, height)
	}
	return []byte(fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f">%s%s</svg>`+"\n",
		d.Width, d.Height, d.Width, d.Height, pictureStyle, d.Elements()))
}

// panel is the points of one scenario.
func (d *drawing) panel(s *ScenarioReport, left, top, width, height float64) {
	least, most, worst := math.Inf(1), 0.0, 1.0
	for k := range s.Policies {
		mean, good := s.Policies[k].Metrics["ttft_mean_s"].Mean, s.Policies[k].Metrics["goodput_share"].Mean
		least, most, worst = min(least, mean), max(most, mean), min(worst, good)
	}
	worst = math.Floor(10*worst) / 10
	x := logScale{from: least / 1.15, to: most * 1.15, start: left, length: width}
	y := func(share float64) float64 { return top + height*(1-share)/(1-worst) }
	d.Text(left, top-28, "start", "title", s.Name)
	d.Text(left+10+9*float64(len(s.Name)), top-28, "start", "soft", s.Title)
	d.Text(left, top-11, "start", "soft", "requests in time (first token, and every gap)")
	for share := worst; share < 1.001; share += 0.1 {
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, left, left+width, y(share), y(share))
		d.Text(left-6, y(share)+4, "end", "soft", fmt.Sprintf("%.0f %%", 100*share))
	}
	for _, t := range []float64{0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 20, 50, 100, 200} {
		if t < x.from || t > x.to {
			continue
		}
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="axis"/>`, x.at(t), x.at(t), top+height, top+height+4)
		d.Text(x.at(t), top+height+18, "middle", "soft", fmt.Sprintf("%g", t))
	}
	d.Text(left+width, top+height+36, "end", "soft", "mean time to the first token, s")
	points := make([]*PolicyReport, 0, len(s.Policies))
	for k := range s.Policies {
		points = append(points, &s.Policies[k])
	}
	slices.SortFunc(points, func(a, b *PolicyReport) int {
		return int(math.Copysign(1, b.Metrics["goodput_share"].Mean-a.Metrics["goodput_share"].Mean))
	})
	lowest := math.Inf(-1) // of the labels so far
	for _, p := range points {
		px, py := x.at(p.Metrics["ttft_mean_s"].Mean), y(p.Metrics["goodput_share"].Mean)
		label := max(py, lowest+15)
		lowest = label
		d.Add(`<polyline points="%.1f,%.1f %.1f,%.1f %.1f,%.1f" class="lead"/>`, px, py, left+width+4, label, left+width+12, label)
		d.Add(`<circle cx="%.1f" cy="%.1f" r="5" class="%s"/>`, px, py, p.Kind)
		d.Text(left+width+16, label+4, "start", string(p.Kind), p.Name)
	}
}
