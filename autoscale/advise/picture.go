package advise

import (
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// steps of time that a picture of a traffic has.
const steps = 120

// WriteSVG draws the traffic over time with its busiest window, and what each way
// costs.
func (a *Advice) WriteSVG(out io.Writer, t *Traffic) error {
	d := &strings.Builder{}
	d.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 380" width="900" height="380">
<style>text{font:12px system-ui,sans-serif;fill:#444}.v{font-size:14px;fill:#111}.in{fill:none;stroke:#2f6fb7;stroke-width:1.5}.out{fill:none;stroke:#d9541e;stroke-width:1.5}.w{fill:#f0e3c8}.p{fill:#2f6fb7}.d{fill:#d9541e}.b{fill:#7d8790}.g{stroke:#ddd}</style>
<rect width="900" height="380" fill="#fff"/>
`)
	fmt.Fprintf(d, `<text x="12" y="22" class="v">%s</text>`+"\n", html.EscapeString(a.Verdict()))
	a.drawTraffic(d, t)
	a.drawCosts(d)
	d.WriteString("</svg>\n")
	_, err := io.WriteString(out, d.String())
	return err
}

// drawTraffic draws tokens per second over time, above the costs.
func (a *Advice) drawTraffic(d *strings.Builder, t *Traffic) {
	const left, right, top, bottom = 80.0, 880.0, 60.0, 190.0
	whole := max(t.Requests[len(t.Requests)-1].At, time.Second)
	var in, out [steps]float64
	for _, r := range t.Requests {
		i := min(int(steps*r.At/whole), steps-1)
		in[i] += float64(r.Uncached) * steps / whole.Seconds()
		out[i] += float64(r.Output) * steps / whole.Seconds()
	}
	most := 1.0
	for i := range in {
		most = max(most, in[i], out[i])
	}
	x := func(at time.Duration) float64 {
		return left + (right-left)*min(1, at.Seconds()/whole.Seconds())
	}
	fmt.Fprintf(d, `<rect x="%.1f" y="%.0f" width="%.1f" height="%.0f" class="w"/>`, x(a.From), top, x(a.From+a.Question.Window)-x(a.From), bottom-top)
	for _, line := range []struct {
		values [steps]float64
		class  string
	}{{in, "in"}, {out, "out"}} {
		var points []string
		for i, v := range line.values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", left+(right-left)*(float64(i)+0.5)/steps, bottom-(bottom-top)*v/most))
		}
		fmt.Fprintf(d, `<polyline points="%s" class="%s"/>`, strings.Join(points, " "), line.class)
	}
	fmt.Fprintf(d, `<text x="%.0f" y="%.0f">tokens a second: prompts to compute (blue), answers (red); the busiest time is shaded</text>`, left, top-8)
	fmt.Fprintf(d, `<text x="%.0f" y="%.0f" text-anchor="end">%.0f</text><text x="%.0f" y="%.0f" text-anchor="end">%v</text>`+"\n",
		left-6, top+4, most, right, bottom+16, whole.Round(time.Second))
}

// drawCosts draws a bar for each way.
func (a *Advice) drawCosts(d *strings.Builder) {
	const left, length, top, row = 180.0, 560.0, 236.0, 26.0
	most := a.Mix.Cost
	for _, g := range a.Aggregated {
		if g.Meets {
			most = max(most, g.Cost)
		}
	}
	most = max(most, 1e-9)
	bar := func(at int, name, words string, parts ...struct {
		cost  float64
		class string
	}) {
		y, x := top+row*float64(at), left
		fmt.Fprintf(d, `<text x="%.0f" y="%.0f" text-anchor="end">%s</text>`, left-8, y+13, html.EscapeString(name))
		for _, p := range parts {
			fmt.Fprintf(d, `<rect x="%.1f" y="%.0f" width="%.1f" height="18" class="%s"/>`, x, y, length*p.cost/most, p.class)
			x += length * p.cost / most
		}
		fmt.Fprintf(d, `<text x="%.1f" y="%.0f">%s</text>`+"\n", x+6, y+13, html.EscapeString(words))
	}
	type part = struct {
		cost  float64
		class string
	}
	var prefill, decode int
	var parts [2]part
	parts[0].class, parts[1].class = "p", "d"
	for g, v := range a.Question.Variants {
		prefill, decode = prefill+a.Mix.Prefill[g], decode+a.Mix.Decode[g]
		parts[0].cost += float64(a.Mix.Prefill[g]) * v.Cost
		parts[1].cost += float64(a.Mix.Decode[g]) * v.Cost
	}
	fmt.Fprintf(d, `<text x="%.0f" y="%.0f">cost an hour</text>`, left, top-10)
	words := fmt.Sprintf("%d + %d servers, %.2f", prefill, decode, a.Mix.Cost)
	if prefill+decode == 0 {
		words = "misses the objectives"
	}
	bar(0, "prefill + decode", words, parts[0], parts[1])
	for i, g := range a.Aggregated {
		if !g.Meets {
			bar(i+1, "both, "+g.Variant, "misses the objectives")
			continue
		}
		bar(i+1, "both, "+g.Variant, fmt.Sprintf("%d servers, %.2f", g.Servers, g.Cost), part{g.Cost, "b"})
	}
}
