package policy

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
	if len(r.Scenarios) == 0 {
		_, err := io.WriteString(w, "<!doctype html><title>Nothing compared</title><p>No scenario ran.")
		return err
	}
	mean := func(p PolicyReport, name string) float64 { return p.Metrics[name].Mean }
	show := func(format string, scale float64) func(PolicyReport, string) string {
		return func(p PolicyReport, name string) string { return fmt.Sprintf(format, scale*mean(p, name)) }
	}
	page, err := template.New("page").Funcs(template.FuncMap{
		"overview": overviewChart, "names": numberPolicies, "bars": barChart, "deciles": decileChart,
		"wide": func() template.CSS { return svg.WideStyle },
		"ours": ourSteps, "reached": reachedGates,
		"sec": show("%.2f", 1), "milli": show("%.1f", 1e3), "percent": show("%.0f%%", 100), "count": show("%.0f", 1), "micro": show("%.1f", 1e-3),
		"moved": func(p PolicyReport) string {
			return fmt.Sprintf("%.1f", (mean(p, "moved_in_rack_bytes")+mean(p, "moved_cross_rack_bytes"))/1e12)
		},
	}).Parse(pageText)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return page.Execute(w, r)
}

func reachedGates(gates []Gate) int {
	n := 0
	for _, g := range gates {
		if g.Reached {
			n++
		}
	}
	return n
}

// steps is our policies beside each other.
type steps struct {
	Names []string
	Rows  []stepRow
}

type stepRow struct {
	Scenario, Best, Default string
	BestMean, DefaultMean   float64
	Cells                   []string
}

// ourSteps is nil where there is nothing to compare.
func ourSteps(r *Report) *steps {
	table := &steps{}
	for _, p := range r.Scenarios[0].Policies {
		if p.Kind == Ours {
			table.Names = append(table.Names, p.Name)
		}
	}
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		if s.BestReleased == "" || s.BestDefault == "" || len(table.Names) == 0 {
			return nil
		}
		row := stepRow{Scenario: s.Name, Best: s.BestReleased, BestMean: s.policy(s.BestReleased).Metrics["ttft_mean_s"].Mean}
		row.Default, row.DefaultMean = s.BestDefault, s.policy(s.BestDefault).Metrics["ttft_mean_s"].Mean
		for _, name := range table.Names {
			p := s.policy(name)
			row.Cells = append(row.Cells, fmt.Sprintf("%.2f (%.2f)", p.Metrics["ttft_mean_s"].Mean, p.Ratios["ttft_mean"].Mean))
		}
		table.Rows = append(table.Rows, row)
	}
	return table
}
