package loadtest

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// WriteTable writes the report for a reader.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	r.writeHead(&text)
	r.writeLatencies(&text)
	r.writeErrors(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

func (r *Report) writeHead(w *strings.Builder) {
	streamed := "streamed"
	if !r.Target.Stream {
		streamed = "not streamed"
	}
	fmt.Fprintf(w, "target     %s, model %s, %s, %s\n", r.Target.URL, r.Target.Model, r.Target.Endpoint, streamed)
	fmt.Fprintf(w, "run        %.1f s of arrivals, %.1f s in all", r.ArrivalSeconds, r.TotalSeconds)
	if r.Interrupted {
		fmt.Fprint(w, ", ended early by you")
	}
	fmt.Fprintf(w, "\ntext       %.3f words per token (%s)\n\n", r.Workload.Words.PerToken, r.Workload.Words.Source)
	n := r.Requests
	fmt.Fprintf(w, "requests   %d arrived: %d ok, %d failed", n.Arrived, n.OK, n.Failed)
	if n.Interrupted > 0 {
		fmt.Fprintf(w, ", %d interrupted", n.Interrupted)
	}
	fmt.Fprintf(w, "; at most %d in flight\n", n.InFlightPeak)
	fmt.Fprintf(w, "rates      %.2f ok/s", r.OKPerSecond)
	if g := r.Goodput; g != nil {
		fmt.Fprintf(w, ", goodput %.2f/s (%d met %s)", g.PerSecond, g.Met, g.limits())
	}
	fmt.Fprintf(w, "\ntokens     %d output, %.1f/s; %d prompt, of them %d cached\n",
		r.Tokens.Output, r.Tokens.OutputPerSecond, r.Tokens.Prompt, r.Tokens.Cached)
	if k := r.Tokens; k.Repeated > 0 {
		fmt.Fprintf(w, "cache      %.1f %% of prompt tokens came from caches; perfect knowledge of caches without limit: %.1f %%\n",
			percent(k.Cached, k.Prompt), percent(k.Repeated, k.Prompt))
	}
	if r.Tokens.Uncounted > 0 {
		fmt.Fprintf(w, "           %d answers without usage: output tokens are their content events, prompt tokens unknown\n", r.Tokens.Uncounted)
	}
}

// percent is n of d, and 0 of nothing.
func percent(n, d int) float64 {
	if d == 0 {
		return 0
	}
	return 100 * float64(n) / float64(d)
}

// limits writes the SLOs that were asked for, in milliseconds.
func (g *Goodput) limits() string {
	var parts []string
	for _, slo := range []struct {
		name    string
		seconds float64
	}{{"TTFT", g.TTFT}, {"ITL", g.ITL}, {"TPOT", g.TPOT}, {"E2E", g.E2E}} {
		if slo.seconds > 0 {
			parts = append(parts, fmt.Sprintf("%s <= %g ms", slo.name, slo.seconds*1000))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *Report) writeLatencies(w *strings.Builder) {
	fmt.Fprintf(w, "\n%-9s %10s %10s %10s %10s %10s %9s\n", "ms", "mean", "p50", "p90", "p99", "max", "count")
	for _, row := range []struct {
		name string
		Summary
	}{{"TTFT", r.TTFT}, {"ITL", r.ITL}, {"TPOT", r.TPOT}, {"E2E", r.E2E}, {"send lag", r.SendLag}} {
		if row.Count == 0 {
			continue
		}
		fmt.Fprintf(w, "%-9s %10.2f %10.2f %10.2f %10.2f %10.2f %9d\n", row.name,
			row.Mean*1000, row.P50*1000, row.P90*1000, row.P99*1000, row.Max*1000, row.Count)
	}
	if r.ITL.Count > 0 {
		fmt.Fprint(w, "ITL is each gap, as in vllm bench; what AIPerf and GenAI-Perf call ITL is TPOT here\n")
	}
}

// writeErrors writes the failures, the most frequent kind first, with samples.
func (r *Report) writeErrors(w *strings.Builder) {
	if len(r.Errors) == 0 {
		return
	}
	fmt.Fprint(w, "\nfailed\n")
	for _, kind := range kindsByCount(r.Errors) {
		fmt.Fprintf(w, "%9d  %s\n", r.Errors[kind], kind)
		for _, s := range r.Samples {
			if s.Kind == kind {
				fmt.Fprintf(w, "           at %.3f s: %s%s\n", s.At, s.Detail, requestIDNote(s.RequestID))
			}
		}
	}
}

func requestIDNote(id string) string {
	if id == "" {
		return ""
	}
	return " (request " + id + ")"
}

// kindsByCount sorts the kinds by falling count, then by name.
func kindsByCount(errors map[Kind]int) []Kind {
	return slices.SortedFunc(maps.Keys(errors), func(a, b Kind) int {
		return cmp.Or(errors[b]-errors[a], strings.Compare(string(a), string(b)))
	})
}
