package proxybench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// tally is what a load came to.
type tally struct {
	requests atomic.Int64
	events   atomic.Int64
	timed    time.Time // latencies are of what began then or later

	mu        sync.Mutex // guards all below
	latencies []time.Duration
	errors    map[string]int
}

// fail counts a request that went wrong, unless the load has ended meanwhile.
func (t *tally) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.errors == nil {
		t.errors = map[string]int{}
	}
	why := "connection: " + err.Error()
	if errors.Is(err, errWrong) {
		why = err.Error()
	}
	t.errors[clip(why)]++
}

// clip keeps errors that differ by a mark or an address few.
func clip(why string) string { return why[:min(len(why), 60)] }

func (t *tally) took(start time.Time, d time.Duration) {
	if start.Before(t.timed) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latencies = append(t.latencies, d)
}

// quantile of the latencies, in milliseconds.
func (t *tally) quantile(q float64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return quantile(t.latencies, q)
}

func quantile(all []time.Duration, q float64) float64 {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return float64(sorted[int(q*float64(len(sorted)-1))].Microseconds()) / 1000
}

// marks are never given twice in a run.
var marks atomic.Uint64

func nextMark() mark { return markOf(marks.Add(1)) }

// each runs so many workers, each with a connection of its own, until the context ends. A worker that
// failed goes on with its next request.
func each(ctx context.Context, address string, workers int, t *tally, work func(c *client, worker int) error) (wait func()) {
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			c := &client{address: address}
			defer c.close()
			stop := context.AfterFunc(ctx, c.interrupt)
			defer stop()
			for ctx.Err() == nil {
				if err := work(c, i); err != nil {
					t.fail(ctx, err)
					hasTime(ctx, 10*time.Millisecond) // a proxy that refuses all does not fill the machine
				}
			}
		})
	}
	return all.Wait
}

// whole asks for whole answers as fast as they come.
func whole(ctx context.Context, address string, workers, size, tokens int, t *tally) (wait func()) {
	texts := prompts(size, tokens, false)
	return each(ctx, address, workers, t, func(c *client, worker int) error {
		start := time.Now()
		n := marks.Add(1)
		if err := c.ask(&texts[n%documents], markOf(n), tokens); err != nil {
			return err
		}
		t.requests.Add(1)
		t.took(start, time.Since(start))
		return nil
	})
}

// pace judges how punctually the events of a stream come that are sent one each gap. The beginning of a stream keeps
// no pace: a token of prefill's is there before decode's first one, and would make all that follow late.
type pace struct {
	gap    time.Duration
	from   time.Time // events before that are not judged
	events int       // that were
	first  time.Time // when the first one came, had it been no later than the least late one so far
}

// late is how much later the next event comes than the least late one would have come in its place.
func (p *pace) late(at time.Time) time.Duration {
	if at.Before(p.from) {
		return 0
	}
	first := at.Add(-p.gap * time.Duration(p.events))
	if p.events == 0 || first.Before(p.first) {
		p.first = first
	}
	p.events++
	return first.Sub(p.first)
}

// streams asks for streamed answers, one after the other on each connection. Where events come at a pace, what is
// timed is how late each is.
func streams(ctx context.Context, address string, workers, size, tokens int, gap time.Duration, t *tally) (wait func()) {
	texts := prompts(size, tokens, true)
	texts.pace(gap)
	return each(ctx, address, workers, t, func(c *client, worker int) error {
		n := marks.Add(1)
		s, err := c.open(&texts[n%documents], markOf(n))
		if err != nil {
			return err
		}
		paced := pace{gap: gap, from: t.timed}
		for {
			more, err := s.next()
			if err != nil {
				c.close()
				return err
			}
			if !more {
				break
			}
			t.events.Add(1)
			if gap > 0 {
				now := time.Now()
				t.took(now, paced.late(now))
			}
		}
		if s.events != tokens {
			c.close()
			return wrong("%d events, not %d", s.events, tokens)
		}
		t.requests.Add(1)
		return nil
	})
}
