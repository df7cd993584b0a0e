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
		"wide":    func() template.CSS { return svg.WideStyle },
		"percent": func(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) },
		"sec":     func(seconds float64) string { return fmt.Sprintf("%.2f", seconds) },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return page.Execute(w, r)
}

// chart has a bar for each run, as long as the share of prompt tokens that was cached, and a
// mark where the oracle's is. The runs of one API, fleet and cache stand below its name, the figures
// before the bars, where a phone shows them.
func chart(r *Report) template.HTML {
	const left, right, row, heading, top = 140.0, 20.0, 17.0, 24.0, 26.0
	d := &svg.Drawing{Width: 540}
	length := d.Width - left - right
	bars, y := new(svg.Drawing), top
	before := ""
	for i := range r.Results {
		x := &r.Results[i]
		group := fmt.Sprintf("%s, %d prefill servers, %s", x.API, x.Servers, x.Cache)
		if group != before {
			bars.Text(0, y+heading-6, "start", "soft", group)
			y += heading
			before = group
		}
		class := "rival"
		if x.Policy == policies[0].name {
			class = "ours"
		}
		bars.Text(left-8, y+12, "end", "", fmt.Sprintf("%s %.1f%%", x.Policy, 100*x.Cached))
		bars.Add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"/>`, left, y+2, length*x.Cached, row-5, class)
		bars.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="oracle"/>`, left+length*x.Oracle, left+length*x.Oracle, y, y+row-1)
		y += row
	}
	for share := 0.0; share <= 1; share += 0.25 {
		d.Text(left+length*share, top-10, "middle", "soft", fmt.Sprintf("%.0f%%", 100*share))
		d.Add(`<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" class="grid"/>`, left+length*share, left+length*share, top-4, y)
	}
	d.Add("%s", bars.Elements()) // above the lines
	d.Height = y + 14
	return d.HTML("share of prompt tokens that was cached, by run; the marks are the oracle's")
}
