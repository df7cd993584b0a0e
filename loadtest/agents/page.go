package agents

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

//go:embed page.html
var pageText string

// WritePage writes the report as one HTML file without anything from elsewhere.
func (r *Report) WritePage(w io.Writer) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"chart":   chart,
		"percent": func(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) },
		"sec":     func(seconds float64) string { return fmt.Sprintf("%.2f", seconds) },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return page.Execute(w, r)
}

// chart has a bar for each run, as long as the share of prompt tokens that was cached, and a
// mark where the oracle's is.
func chart(r *Report) template.HTML {
	const left, right, row, gap, top = 250.0, 70.0, 17.0, 12.0, 26.0
	d := &svg.Drawing{Width: 900, Height: top + 14}
	y := top
	length := d.Width - left - right
	before := ""
	for i := range r.Results {
		x := &r.Results[i]
		group := fmt.Sprintf("%s, %d prefill servers, %s", x.API, x.Servers, x.Cache)
		if group != before {
			if before != "" {
				y += gap
			}
			d.Text(left-96, y+12, "end", "soft", group)
			before = group
		}
		class := "rival"
		if x.Policy == policies[0].name {
			class = "ours"
		}
		d.Text(left-10, y+12, "end", "", x.Policy)
		d.Add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"/>`, left, y+2, length*x.Cached, row-5, class)
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="oracle"/>`, left+length*x.Oracle, left+length*x.Oracle, y, y+row-1)
		d.Text(left+length*max(x.Cached, x.Oracle)+8, y+12, "start", "", fmt.Sprintf("%.1f%%", 100*x.Cached))
		y += row
	}
	for share := 0.0; share <= 1; share += 0.25 {
		d.Text(left+length*share, top-10, "middle", "soft", fmt.Sprintf("%.0f%%", 100*share))
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, left+length*share, left+length*share, top-4, y)
	}
	d.Height = y + 14
	return d.HTML("share of prompt tokens that was cached, by run; the marks are the oracle's")
}
