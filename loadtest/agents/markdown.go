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
	out := fmt.Appendf(nil, "| prefill | cache | API | policy | cached | of the oracle's | changed | needless | losing | TTFT p50 s | p99 s | p99 above chat's, 95 %% | repeated |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for i := range rows {
		x := &rows[i]
		out = fmt.Appendf(out, "| %d | %s | %s | %s | %.1f %% | %.1f %% | %d of %d | %d | %d | %.2f | %.2f | %s | %.2f |\n", x.Servers, x.Cache, x.API, x.Policy,
			100*x.Cached, 100*x.OfOracle, x.Changed, x.NeedNot, x.Needless, x.Losing, x.TTFT50, x.TTFT99, x.AboveChat, x.Repeated)
	}
	out = append(out, '\n')
	for _, t := range r.Totals() {
		out = fmt.Appendf(out, "- %s\n", t)
	}
	for _, g := range r.Goals() {
		out = fmt.Appendf(out, "- %s\n", g)
	}
	_, err := w.Write(out)
	return err
}
