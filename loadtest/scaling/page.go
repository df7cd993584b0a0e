package scaling

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/tandem-gateway/tandem/loadtest/svg"
)

//go:embed page.html
var pageText string

// section is a load as the page shows it.
type section struct {
	*Scenario
	Rows  []*Row // of the judged cold start, or the only one
	Other []*Row // of other cold starts
	Most  [2]float64
}

// WritePage writes the report as one HTML file without anything from elsewhere.
func (r *Report) WritePage(out io.Writer) error {
	page, err := template.New("page").Funcs(template.FuncMap{
		"wide":    func() template.CSS { return svg.WideStyle },
		"cost":    costChart,
		"lines":   func(row *Row, most [2]float64) template.HTML { return timeChart(row.First, most) },
		"percent": func(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) },
		"one":     func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"two":     func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"over":    func(a, b float64) string { return fmt.Sprintf("%.2f", a/b) },
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return page.Execute(out, struct {
		*Report
		Sections []section
		Policies []Policy
	}{r, r.sections(), r.policies})
}

func (r *Report) sections() []section {
	var all []section
	for _, s := range r.scenarios {
		part := section{Scenario: s, Most: [2]float64{1, 1}}
		for _, row := range r.Rows() {
			switch {
			case row.Scenario != s.Name:
			case len(part.Rows) == 0 || row.ColdStart == part.Rows[0].ColdStart:
				part.Rows = append(part.Rows, row)
			case row.ColdStart == judgedCold:
				part.Other = append(part.Other, part.Rows...)
				part.Rows = []*Row{row}
			default:
				part.Other = append(part.Other, row)
			}
		}
		for _, row := range part.Rows {
			for _, v := range row.First.Lines.PrefillWork {
				part.Most[0] = max(part.Most[0], 2*float64(int(v)+1))
			}
			for _, v := range row.First.Lines.DecodeWork {
				part.Most[1] = max(part.Most[1], 2*float64(int(v)+1))
			}
		}
		all = append(all, part)
	}
	return all
}
