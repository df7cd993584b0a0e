package scaling

import (
	"fmt"
	"html"
	"html/template"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// panel is a part of a drawing with axes of its own.
type panel struct {
	*svg.Drawing
	left, right, top, bottom float64
	xMax, yMax               float64
}

func (p *panel) x(v float64) float64 { return p.left + (p.right-p.left)*v/p.xMax }

func (p *panel) y(v float64) float64 { return p.bottom - (p.bottom-p.top)*min(v, p.yMax)/p.yMax }

// line draws values at equal steps. A stepped one keeps a value until the next.
func (p *panel) line(values []float64, class string, stepped bool) {
	var points []string
	for i, v := range values {
		if stepped && i > 0 {
			points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(float64(i)), p.y(values[i-1])))
		}
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(float64(i)), p.y(v)))
	}
	p.Add(`<polyline points="%s" class="%s"/>`, strings.Join(points, " "), class)
}

func (p *panel) area(values []float64, class string) {
	points := []string{fmt.Sprintf("%.1f,%.1f", p.x(0), p.y(0))}
	for i, v := range values {
		points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(float64(i)), p.y(v)))
	}
	points = append(points, fmt.Sprintf("%.1f,%.1f", p.x(float64(len(values)-1)), p.y(0)))
	p.Add(`<polygon points="%s" class="%s"/>`, strings.Join(points, " "), class)
}

// frame draws the base line, the bound of y and a title.
func (p *panel) frame(title string) {
	p.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, p.left, p.right, p.bottom, p.bottom)
	p.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, p.left, p.right, p.top, p.top)
	p.Text(p.left-6, p.bottom+4, "end", "soft", "0")
	p.Text(p.left-6, p.top+4, "end", "soft", fmt.Sprintf("%g", p.yMax))
	p.Text(p.left, p.top-5, "start", "soft", title)
}

// timeChart draws an outcome: demand, servers and good requests over time.
func timeChart(o *Outcome, most [2]float64) template.HTML {
	d := &svg.Drawing{Width: 600, Height: 300}
	steps := float64(max(len(o.Lines.Good)-1, 1))
	place := func(top, bottom, yMax float64) *panel {
		return &panel{Drawing: d, left: 34, right: d.Width - 8, top: top, bottom: bottom, xMax: steps, yMax: yMax}
	}
	roles := []struct {
		panel             *panel
		title             string
		work, ready, pods []float64
	}{
		{place(18, 118, most[0]), "prefill servers", o.Lines.PrefillWork, o.Lines.PrefillReady, o.Lines.PrefillPods},
		{place(142, 222, most[1]), "decode servers", o.Lines.DecodeWork, o.Lines.DecodeReady, o.Lines.DecodePods},
	}
	for _, r := range roles {
		r.panel.frame(r.title)
		r.panel.area(r.work, "work")
		r.panel.line(r.pods, "pods", true)
		r.panel.line(r.ready, "ready", true)
	}
	good := place(246, 276, 1)
	good.Text(good.left, good.top-5, "start", "soft", "good requests")
	for i, share := range o.Lines.Good {
		if share >= 0 {
			good.Add(`<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" class="%s"/>`,
				good.x(float64(i)), good.y(share), (good.right-good.left)/steps, good.bottom-good.y(share)+0.5, goodness(share))
		}
	}
	for minute := 0.0; minute <= steps/2; minute += 30 {
		d.Text(good.x(2*minute), d.Height-8, "middle", "soft", fmt.Sprintf("%.0f min", minute))
	}
	return d.HTML(o.Policy + ": demand, servers and good requests over time")
}

func goodness(share float64) string {
	switch {
	case share >= 0.95:
		return "fine"
	case share >= 0.5:
		return "poor"
	}
	return "bad"
}

// costChart sets what each policy keeps against what it costs.
func costChart(rows []*Row) template.HTML {
	d := &svg.Drawing{Width: 680, Height: 320}
	p := &panel{Drawing: d, left: 44, right: d.Width - 180, top: 16, bottom: d.Height - 40, yMax: 1}
	for _, r := range rows {
		p.xMax = max(p.xMax, min(r.Hours(), 60)*1.05)
	}
	for share := 0.0; share <= 1; share += 0.25 {
		p.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, p.left, p.right, p.y(share), p.y(share))
		p.Text(p.left-6, p.y(share)+4, "end", "soft", fmt.Sprintf("%.0f%%", 100*share))
	}
	for hours := 0.0; hours <= p.xMax; hours += 10 {
		p.Text(p.x(hours), p.bottom+18, "middle", "soft", fmt.Sprintf("%.0f h", hours))
	}
	labels := slices.Clone(rows)
	slices.SortFunc(labels, func(a, b *Row) int { return int(1e4 * (b.Good - a.Good)) })
	at := 0.0
	for _, r := range labels {
		x, y := p.x(min(r.Hours(), 60)), p.y(r.Good)
		at = max(at+15, y)
		more := ""
		if r.Hours() > 60 {
			more = fmt.Sprintf(" (%.0f h)", r.Hours())
		}
		p.Add(`<circle cx="%.1f" cy="%.1f" r="5" class="%s"><title>%s: %.1f%% at %.1f h</title></circle>`, x, y, dotClass(r.Policy), html.EscapeString(r.Policy), 100*r.Good, r.Hours())
		p.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, x+6, p.right+4, y, at-4)
		p.Text(p.right+8, at, "start", "", r.Policy+more)
	}
	return d.HTML("good requests against replica-hours, by policy")
}

func dotClass(policy string) string {
	if strings.HasPrefix(policy, "tandem") {
		return "ours"
	}
	return "other"
}
