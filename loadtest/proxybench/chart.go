package proxybench

import (
	"fmt"
	"io"
	"math"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

// WriteSVG draws what each proxy costs in multiples of the baseline, a bar on a logarithmic scale.
func (r *Report) WriteSVG(w io.Writer) error {
	const left, right, bar, top, gap, span = 230.0, 70.0, 15.0, 30.0, 26.0, 64.0
	type group struct {
		value Value
		rows  []*Row
	}
	var groups []group
	height := top
	for i := range measures {
		for _, v := range measures[i].values {
			if !v.Ratio {
				continue
			}
			g := group{value: v}
			for _, row := range r.Rows {
				if row.Figures[v.Name].Times > 0 && row.Proxy != r.baseline {
					g.rows = append(g.rows, row)
				}
			}
			if len(g.rows) > 0 {
				groups = append(groups, g)
				height += gap + bar*float64(len(g.rows))
			}
		}
	}
	d := &svg.Drawing{Width: 900, Height: height + 10}
	x := func(times float64) float64 {
		share := math.Log(min(max(times, 1/span), span)*span) / math.Log(span*span)
		return left + share*(d.Width-left-right)
	}
	for _, t := range []float64{1.0 / 32, 1.0 / 8, 0.5, 1, 2, 4, 8, 16, 32} {
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#ddd"/>`, x(t), x(t), top-8, d.Height)
		d.Text(x(t), top-12, "middle", "", fmt.Sprintf("%gx", math.Round(t*100)/100))
	}
	y := top
	for _, g := range groups {
		y += gap
		d.Text(6, y-6, "start", "", fmt.Sprintf("%s, times %s", g.value.Title, r.baseline))
		for _, row := range g.rows {
			times := row.Figures[g.value.Name].Times
			from, to := min(x(1), x(times)), max(x(1), x(times))
			d.Text(left-8, y+bar-4, "end", "", row.Proxy)
			d.Add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="#4a7ebb"/>`, from, y+2, max(1, to-from), bar-4)
			d.Text(to+5, y+bar-4, "start", "", fmt.Sprintf("%.2f", times))
			y += bar
		}
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11"><rect width="100%%" height="100%%" fill="white"/>%s</svg>`+"\n",
		d.Width, d.Height, d.Elements())
	return err
}
