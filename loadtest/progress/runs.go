// Package progress shows people how far many runs are.
package progress

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

// lineEvery is how often runs without a terminal write a line.
const lineEvery = 5 * time.Second

// Runs shows how many runs have ended and what the last of them gave: a bar on a
// terminal, a line every five seconds elsewhere. done is called when all have ended.
func Runs(out *os.File) (show func(ended, total int, last fmt.Stringer), done func()) {
	if isatty.IsTerminal(out.Fd()) {
		return bar(out)
	}
	return lines(out), func() {}
}

func lines(out io.Writer) func(ended, total int, last fmt.Stringer) {
	next := time.Now().Add(lineEvery)
	return func(ended, total int, last fmt.Stringer) {
		if ended < total && time.Now().Before(next) {
			return
		}
		next = time.Now().Add(lineEvery)
		fmt.Fprintf(out, "%d of %d runs, last %s\n", ended, total, last)
	}
}

func bar(out io.Writer) (show func(ended, total int, last fmt.Stringer), done func()) {
	progress := mpb.New(mpb.WithOutput(out), mpb.WithWidth(40), mpb.WithAutoRefresh())
	var latest atomic.Pointer[fmt.Stringer] // nil before the first
	b := progress.New(0, mpb.BarStyle(),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d runs")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string {
			if last := latest.Load(); last != nil {
				return (*last).String()
			}
			return ""
		})),
	)
	show = func(ended, total int, last fmt.Stringer) {
		latest.Store(&last)
		b.SetTotal(int64(total), false)
		b.SetCurrent(int64(ended))
	}
	return show, func() {
		b.SetTotal(-1, true)
		progress.Wait()
	}
}
