package loadtest

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// lineEvery is how often a run without a terminal writes a line.
const lineEvery = 5 * time.Second

// Progress shows the state of a run: a bar on a terminal, a plain line every
// five seconds elsewhere. Give show to Run and call done when it has returned.
func Progress(out *os.File) (show func(Snapshot), done func()) {
	if isatty.IsTerminal(out.Fd()) {
		return bar(out)
	}
	return lines(out), func() {}
}

// lines writes one line for each lineEvery that has passed.
func lines(out io.Writer) func(Snapshot) {
	next := lineEvery
	return func(s Snapshot) {
		if s.Elapsed < next {
			return
		}
		next = s.Elapsed.Truncate(lineEvery) + lineEvery
		fmt.Fprintf(out, "%s of %s: %s\n", s.Elapsed.Round(time.Second), s.Planned.Round(time.Second), s.line())
	}
}

// bar draws one bar over the planned time of arrivals; it stays just below full
// while the last answers are waited for.
func bar(out io.Writer) (show func(Snapshot), done func()) {
	const steps = 1000
	progress := mpb.New(mpb.WithOutput(out), mpb.WithWidth(40), mpb.WithAutoRefresh())
	var last atomic.Pointer[Snapshot] // nil before the first
	b := progress.New(steps, mpb.BarStyle(),
		mpb.PrependDecorators(decor.Elapsed(decor.ET_STYLE_MMSS)),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			if s := last.Load(); s != nil {
				return s.line()
			}
			return ""
		})),
	)
	show = func(s Snapshot) {
		last.Store(&s)
		if s.Planned > 0 {
			b.SetCurrent(min(int64(steps*s.Elapsed.Seconds()/s.Planned.Seconds()), steps-1))
		}
	}
	return show, func() {
		b.Abort(last.Load() == nil)
		progress.Wait()
	}
}

// line is the state in a few words.
func (s Snapshot) line() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d ok, %d failed, %d in flight", s.OK, s.Failed, s.InFlight)
	if s.Elapsed > s.Planned {
		fmt.Fprint(&text, " (last answers)")
	}
	if s.MeanTTFT > 0 {
		fmt.Fprintf(&text, ", mean TTFT %.0f ms", float64(s.MeanTTFT.Microseconds())/1000)
	}
	for _, kind := range kindsByCount(s.Errors) {
		fmt.Fprintf(&text, ", %s %d", kind, s.Errors[kind])
	}
	return text.String()
}
