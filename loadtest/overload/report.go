package overload

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the measurement.
type Report struct {
	Binding string        `json:"binding"`
	Factor  float64       `json:"factor"`
	SLO     time.Duration `json:"slo_ns"`
	Peak    Phase         `json:"peak"` // the most that is answered in time
	Over    Phase         `json:"over"`
	After   Phase         `json:"after"`
	// Shared and Flooded are what a steady tenant met beside one that asked for as much,
	// and for ten times as much. Their length is 0 where that was not measured.
	Shared  Phase `json:"shared"`
	Flooded Phase `json:"flooded"`
}

// What must hold.
const (
	leastGoodput = 0.9                   // of the peak, while overloaded
	slowRefusal  = 10 * time.Millisecond // p99
	maxGrowth    = 0.05                  // of memory, per minute
	maxSlower    = 2.0                   // p99 of first tokens that are admitted, times that at the peak
	maxPushed    = 1.5                   // p99 of a steady tenant's first tokens, times that without a flood
)

// Gate is one thing that must hold, and the figures that it was judged by.
type Gate struct {
	Name    string `json:"name"`
	Figures string `json:"figures"`
	OK      bool   `json:"ok"`
}

// Gates judges the report.
func (r *Report) Gates() []Gate {
	gate := func(name string, ok bool, format string, args ...any) Gate {
		return Gate{Name: name, Figures: fmt.Sprintf(format, args...), OK: ok}
	}
	gates := []Gate{
		gate("goodput", r.Over.Good >= leastGoodput*r.Peak.Good, "%.1f/s in time, %.0f %% of the peak's %.1f/s (>= %.0f %%)",
			r.Over.Good, 100*r.Over.Good/max(r.Peak.Good, 1e-9), r.Peak.Good, 100*leastGoodput),
		gate("refusals", r.Over.Refused > 0 && r.Over.Refusal99 <= slowRefusal, "%d, p99 %v (<= %v)", r.Over.Refused, tenths(r.Over.Refusal99), slowRefusal),
		gate("failures", r.Over.Failed+r.After.Failed == 0, "%d (0)", r.Over.Failed+r.After.Failed),
		gate("admitted", float64(r.Over.TTFT99) <= maxSlower*float64(r.Peak.TTFT99), "p99 TTFT %v, %v at the peak (<= %.0fx)", tenths(r.Over.TTFT99), tenths(r.Peak.TTFT99), maxSlower),
		gate("memory", r.Over.Growth <= maxGrowth, "%.0f MB, %+.1f %% a minute (<= %.0f %%)", r.Over.MB, 100*r.Over.Growth, 100*maxGrowth),
		gate("recovery", r.After.Late == 0, "%d not in time from %v after the overload on (0)", r.After.Late, settled),
	}
	if r.Shared.Length > 0 {
		pushed := float64(r.Flooded.All99) / max(float64(r.Shared.All99), 1)
		gates = append(gates, gate("fairness", r.Shared.All99 > 0 && r.Flooded.All99 > 0 && pushed <= maxPushed,
			"p99 TTFT of all that a steady tenant asks for: %s beside one that asks ten times as much, %s before: %.2fx (<= %.1fx)",
			r.Flooded.all99(), r.Shared.all99(), pushed, maxPushed))
	}
	return gates
}

// OK reports whether all gates hold.
func (r *Report) OK() bool {
	for _, g := range r.Gates() {
		if !g.OK {
			return false
		}
	}
	return true
}

// tenths rounds to tenths of a millisecond.
func tenths(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// WriteTable writes the report for a reader: the phases, and a verdict for each gate.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "bound %s: %.1f times the peak; in time is a first token within %v; the peak is the rate that got most of them\n", r.Binding, r.Factor, r.SLO)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PHASE\tREQUESTS/S\tIN TIME/S\tREFUSED\tP99 OF A REFUSAL\tFAILED\tP99 TTFT\tMEMORY")
	for _, p := range []Phase{r.Peak, r.Over, r.After, r.Shared, r.Flooded} {
		if p.Length > 0 {
			fmt.Fprintln(table, p.row())
		}
	}
	_ = table.Flush() // a Builder takes everything
	for _, g := range r.Gates() {
		verdict := "ok"
		if !g.OK {
			verdict = "MISSED"
		}
		fmt.Fprintf(&text, "%-6s  %-8s  %s\n", verdict, g.Name, g.Figures)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// all99 is All99 for a reader.
func (p Phase) all99() string {
	if p.All99 == 0 {
		return fmt.Sprintf("none (%d of %d not answered)", p.Refused+p.Failed, p.Arrived)
	}
	return tenths(p.All99).String()
}

func (p Phase) row() string {
	return fmt.Sprintf("%s\t%.1f\t%.1f\t%d\t%v\t%d\t%v\t%.0f MB", p.Name, p.Rate, p.Good, p.Refused,
		tenths(p.Refusal99), p.Failed, p.TTFT99.Round(time.Millisecond), p.MB)
}

// String is a phase in a line, printed while the run goes on.
func (p Phase) String() string {
	return fmt.Sprintf("%s: %.1f requests/s for %v, %.1f/s in time, %d refused (p99 %v), %d failed, p99 TTFT %v, %.0f MB", p.Name, p.Rate, p.Length,
		p.Good, p.Refused, tenths(p.Refusal99), p.Failed, p.TTFT99.Round(time.Millisecond), p.MB)
}
