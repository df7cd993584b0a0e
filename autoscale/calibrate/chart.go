package calibrate

import (
	"fmt"
	"html"
	"io"
	"strings"

	"github.com/tandem-gateway/tandem/autoscale"
	"github.com/tandem-gateway/tandem/pools"
)

// WriteSVG draws the curves of a capacity and what they were fitted to.
func WriteSVG(out io.Writer, c *autoscale.Capacity) error {
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
	step.draw("decode step, ms by thousand tokens of KV, at 16 sequences", func(x float64) float64 {
		return 1e3 * c.Step.Seconds(pools.StepFeatures(16, int(x*1e3)))
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

func (p *plot) draw(title string, line func(x float64) float64) {
	xMost, yMost := 1e-9, 1e-9
	for _, d := range p.dots {
		xMost, yMost = max(xMost, d.x*1.05), max(yMost, d.y*1.1)
	}
	x := func(v float64) float64 { return p.left + (p.right-p.left)*v/xMost }
	y := func(v float64) float64 { return p.bottom - (p.bottom-p.top)*min(v, yMost)/yMost }
	fmt.Fprintf(p.out, `<text x="%.0f" y="%.0f">%s</text>`, p.left, p.top-8, title)
	for i := range 5 {
		share := float64(i) / 4
		fmt.Fprintf(p.out, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="g"/><text x="%.1f" y="%.1f" text-anchor="end">%.3g</text>`,
			p.left, p.right, y(share*yMost), y(share*yMost), p.left-6, y(share*yMost)+4, share*yMost)
		fmt.Fprintf(p.out, `<text x="%.1f" y="%.1f" text-anchor="middle">%.3g</text>`, x(share*xMost), p.bottom+18, share*xMost)
	}
	var points []string
	for i := range 101 {
		v := xMost * float64(i) / 100
		points = append(points, fmt.Sprintf("%.1f,%.1f", x(v), y(line(v))))
	}
	fmt.Fprintf(p.out, `<polyline points="%s" class="l"/>`, strings.Join(points, " "))
	for _, d := range p.dots {
		fmt.Fprintf(p.out, `<circle cx="%.1f" cy="%.1f" r="4" class="p"/><text x="%.1f" y="%.1f">%s</text>`, x(d.x), y(d.y), x(d.x)+6, y(d.y)+4, d.label)
	}
	fmt.Fprintln(p.out)
}
