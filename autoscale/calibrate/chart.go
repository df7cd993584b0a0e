package calibrate

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// WriteSVG draws the curves of a capacity and what they were fitted to.
func WriteSVG(out io.Writer, c *sizing.Capacity) error {
	d := &strings.Builder{}
	d.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 360" width="860" height="360">
<style>text{font:12px system-ui,sans-serif;fill:#444}.t{font-size:13px;fill:#111}.g{stroke:#ddd}.l{fill:none;stroke:#d9541e;stroke-width:1.6}.p{fill:#2f6fb7}</style>
<rect width="860" height="360" fill="#fff"/>
`)
	prefill := plot{out: d, left: 60, right: 410, top: 50, bottom: 310}
	for _, p := range c.PrefillPoints {
		prefill.dot(float64(p.Tokens)/1e3, p.Seconds*1e3, "")
	}
	prefill.draw("prefill, ms by thousand tokens", func(x float64) float64 {
		return 1e3 * c.PrefillSeconds(x*1e3, 0)
	})
	step := plot{out: d, left: 490, right: 840, top: 50, bottom: 310}
	for _, p := range c.StepPoints {
		step.dot(float64(p.KVTokens)/1e3, p.Seconds*1e3, fmt.Sprint(p.Sequences))
	}
	step.draw("decode step, ms by thousand tokens of KV; line of 16 sequences", func(x float64) float64 {
		return 1e3 * c.Step.Seconds(curve.StepFeatures(16, int(x*1e3)))
	})
	words := fmt.Sprintf("%s, %s: smallest step %.1f ms, KV of %d tokens", c.Model, c.Server, 1e3*c.MinimumStep().Seconds(), c.KVTokens)
	if l := c.Largest; l != nil {
		words += fmt.Sprintf(", %d sequences of %d tokens within %.0f ms", l.Sequences, l.Context, 1e3*l.ITL)
	}
	fmt.Fprintf(d, `<text x="12" y="22" class="t">%s</text></svg>`+"\n", html.EscapeString(words))
	_, err := io.WriteString(out, d.String())
	return err
}

// plot is one panel: dots, and a line over their range.
type plot struct {
	out                      io.Writer
	left, right, top, bottom float64
	dots                     []dot
}

type dot struct {
	x, y  float64
	label string
}

func (p *plot) dot(x, y float64, label string) { p.dots = append(p.dots, dot{x, y, label}) }

// draw draws the panel, the line over the range of the dots.
func (p *plot) draw(title string, line func(x float64) float64) {
	xMost, yMost := 1e-9, 1e-9
	for _, d := range p.dots {
		xMost, yMost = max(xMost, d.x), max(yMost, d.y, line(d.x))
	}
	xStep, yStep := roundStep(xMost/4), roundStep(yMost/4)
	xMost, yMost = xStep*math.Ceil(xMost/xStep), yStep*math.Ceil(yMost/yStep)
	x := func(v float64) float64 { return p.left + (p.right-p.left)*v/xMost }
	y := func(v float64) float64 { return p.bottom - (p.bottom-p.top)*v/yMost }
	fmt.Fprintf(p.out, `<text x="%.0f" y="%.0f">%s</text>`, p.left, p.top-8, title)
	for v := 0.0; v <= 1.001*yMost; v += yStep {
		fmt.Fprintf(p.out, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="g"/><text x="%.1f" y="%.1f" text-anchor="end">%.4g</text>`,
			p.left, p.right, y(v), y(v), p.left-6, y(v)+4, v)
	}
	for v := 0.0; v <= 1.001*xMost; v += xStep {
		fmt.Fprintf(p.out, `<text x="%.1f" y="%.1f" text-anchor="middle">%.4g</text>`, x(v), p.bottom+18, v)
	}
	var points []string
	for i := range 101 {
		if v := xMost * float64(i) / 100; line(v) <= yMost {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(v), y(line(v))))
		}
	}
	fmt.Fprintf(p.out, `<polyline points="%s" class="l"/>`, strings.Join(points, " "))
	for _, d := range p.dots {
		fmt.Fprintf(p.out, `<circle cx="%.1f" cy="%.1f" r="4" class="p"/>`, x(d.x), y(d.y))
	}
	p.labels(x, y)
	fmt.Fprintln(p.out)
}

// labelRoom is how far apart, in pixels, two dots have a label each.
const labelRoom = 9

// labels writes the labels of the dots, those of dots in one place together.
func (p *plot) labels(x, y func(float64) float64) {
	var written []dot
	for _, d := range p.dots {
		i := slices.IndexFunc(written, func(w dot) bool {
			return math.Hypot(x(w.x)-x(d.x), y(w.y)-y(d.y)) < labelRoom
		})
		if i < 0 {
			written = append(written, d)
		} else if d.label != "" {
			written[i].label += ", " + d.label
		}
	}
	for _, w := range written {
		fmt.Fprintf(p.out, `<text x="%.1f" y="%.1f">%s</text>`, x(w.x)+7, y(w.y)+4, w.label)
	}
}

// roundStep is the smallest of 1, 2, 5, 10, ... in any power of ten that is no less.
func roundStep(least float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= least {
			return digit * power
		}
	}
	return 10 * power
}
