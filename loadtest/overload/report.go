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
	Factor float64       `json:"factor"`
	SLO    time.Duration `json:"slo_ns"`
	Peak   Phase         `json:"peak"` // the most that is answered in time
	Before Phase         `json:"before"`
	Over   Phase         `json:"over"`
	After  Phase         `json:"after"`
}

// What must hold.
const (
	leastGoodput = 0.9                   // of the peak, while overloaded
	slowRefusal  = 10 * time.Millisecond // p99
	maxGrowth    = 0.05                  // of memory, per minute
)

// Broken is what does not hold, in sentences; none is good.
func (r *Report) Broken() (broken []string) {
	say := func(ok bool, format string, args ...any) {
		if !ok {
			broken = append(broken, fmt.Sprintf(format, args...))
		}
	}
	say(r.Over.Good >= leastGoodput*r.Peak.Good, "goodput under overload is %.1f/s, %.0f %% of the peak of %.1f/s", r.Over.Good, 100*r.Over.Good/r.Peak.Good, r.Peak.Good)
	say(r.Over.Refused > 0 && r.Over.Refusal99 <= slowRefusal, "%d refusals, p99 %v", r.Over.Refused, r.Over.Refusal99)
	say(r.Over.Failed == 0, "%d requests failed otherwise than by a refusal", r.Over.Failed)
	say(r.Over.Growth <= maxGrowth, "memory grows by %.0f %% a minute", 100*r.Over.Growth)
	say(r.After.Late == 0, "%d requests that came %v after the overload were not answered in time", r.After.Late, settled)
	return broken
}

// WriteTable writes the report for a reader.
func (r *Report) WriteTable(w io.Writer) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PHASE\tREQUESTS/S\tIN TIME/S\tREFUSED\tP99 OF A REFUSAL\tFAILED\tP99 TTFT\tMEMORY")
	for _, p := range []Phase{r.Peak, r.Before, r.Over, r.After} {
		fmt.Fprintln(table, p.row())
	}
	_ = table.Flush() // a Builder takes everything
	fmt.Fprintf(&text, "\nin time is a first token within %v; the peak is the rate that got most of them\n", r.SLO)
	fmt.Fprintf(&text, "under %.1f times the peak: %.0f %% of its goodput; %v later: %d not in time\n", r.Factor, 100*r.Over.Good/max(r.Peak.Good, 1e-9), settled, r.After.Late)
	_, err := io.WriteString(w, text.String())
	return err
}

func (p Phase) row() string {
	return fmt.Sprintf("%s\t%.1f\t%.1f\t%d\t%v\t%d\t%v\t%.0f MB", p.Name, p.Rate, p.Good, p.Refused,
		p.Refusal99.Round(100*time.Microsecond), p.Failed, p.TTFT99.Round(time.Millisecond), p.MB)
}

// String is a phase in a line, for those who wait.
func (p Phase) String() string {
	return fmt.Sprintf("%s: %.1f requests/s for %v, %.1f/s in time, %d refused (p99 %v), %d failed, p99 TTFT %v, %.0f MB", p.Name, p.Rate, p.Length,
		p.Good, p.Refused, p.Refusal99.Round(100*time.Microsecond), p.Failed, p.TTFT99.Round(time.Millisecond), p.MB)
}
