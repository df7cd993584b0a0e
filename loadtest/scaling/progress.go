package scaling

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// lineEvery is how often a comparison without a terminal writes a line.
const lineEvery = 5 * time.Second

// Progress is told of each run that ends.
type Progress func(done, total int, last *Outcome)

// ShowProgress shows how far a comparison is: a bar on a terminal, a line every five
// seconds elsewhere. Give show to Compare and call done when it has returned.
func ShowProgress(out *os.File) (show Progress, done func()) {
	if isatty.IsTerminal(out.Fd()) {
		return bar(out)
	}
	return lines(out), func() {}
}

func lines(out io.Writer) Progress {
	next := time.Now().Add(lineEvery)
	return func(done, total int, last *Outcome) {
		if done < total && time.Now().Before(next) {
			return
		}
		next = time.Now().Add(lineEvery)
		fmt.Fprintf(out, "%d of %d runs, last %s\n", done, total, last.words())
	}
}

func bar(out io.Writer) (show Progress, done func()) {
	progress := mpb.New(mpb.WithOutput(out), mpb.WithWidth(40), mpb.WithAutoRefresh())
	var last atomic.Pointer[Outcome] // nil before the first
	b := progress.New(0, mpb.BarStyle(),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d runs")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			if o := last.Load(); o != nil {
				return o.words()
			}
			return ""
		})),
	)
	show = func(done, total int, o *Outcome) {
		last.Store(o)
		b.SetTotal(int64(total), false)
		b.SetCurrent(int64(done))
	}
	return show, func() {
		b.SetTotal(-1, true)
		progress.Wait()
	}
}

// words are an outcome in a few of them.
func (o *Outcome) words() string {
	return fmt.Sprintf("%s %s, cold start %.0f s: %.1f %% good at %.1f h", o.Scenario, o.Policy, o.ColdStart, 100*o.Good, o.Hours())
}
