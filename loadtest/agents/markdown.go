package agents

import (
	"cmp"
	"fmt"
	"io"
	"slices"
)

// WriteMarkdown writes the table of docs/agents.md, and under it what the goals come to.
func (r *Report) WriteMarkdown(w io.Writer) error {
	rows := slices.Clone(r.Results)
	slices.SortStableFunc(rows, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Servers, b.Servers), cmp.Compare(a.Cache, b.Cache), cmp.Compare(place(a.API), place(b.API)))
	})
	out := fmt.Appendf(nil, "| prefill | cache | API | policy | cached | of the oracle's | changed | needless | losing | TTFT p50 s | p99 s | repeated |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range rows {
		x := &rows[i]
		out = fmt.Appendf(out, "| %d | %s | %s | %s | %.1f %% | %.1f %% | %d of %d | %d | %d | %.2f | %.2f | %.2f |\n", x.Servers, x.Cache, x.API, x.Policy,
			100*x.Cached, 100*x.OfOracle, x.Changed, x.NeedNot, x.Needless, x.Losing, x.TTFT50, x.TTFT99, x.Repeated)
	}
	out = append(out, '\n')
	for _, t := range r.Totals() {
		out = fmt.Appendf(out, "- %s\n", t)
	}
	for _, g := range r.Goals() {
		verdict := "missed"
		if g.Reached() {
			verdict = "reached"
		}
		out = fmt.Appendf(out, "- %s: **%s**, in %d of %d runs\n", g.Text, verdict, g.Met, g.Of)
	}
	_, err := w.Write(out)
	return err
}
