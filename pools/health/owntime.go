package health

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ownSteps is how many times a limit of own time is looked at.
const ownSteps = 20

// ownTime adds up how long this process has run. What is longer than two looks at it is
// time in which it did not: it was stopped, or starved of CPU.
type ownTime struct {
	step time.Duration // between two looks
	last time.Time
	ran  time.Duration
}

func (o *ownTime) look(now time.Time) {
	o.ran += min(now.Sub(o.last), 2*o.step)
	o.last = now
}

// afterOwnTime calls f once, in a goroutine of its own, when this process has run for d, unless it is
// stopped before. Time in which it did not run does not count: answers that
// were there in time wait unread then, and counting it would take the gateway's fault
// for the servers'.
func afterOwnTime(d time.Duration, f func()) (stop func()) {
	own := ownTime{step: max(d/ownSteps, 1), last: time.Now()}
	var mu sync.Mutex // guards all below, and own
	var timer *time.Timer
	stopped := false
	look := func() (over bool) {
		mu.Lock()
		defer mu.Unlock()
		if own.look(time.Now()); own.ran < d && !stopped {
			timer.Reset(own.step)
			return false
		}
		return !stopped
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(own.step, func() {
		if look() {
			f()
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// withinOwnTime does something with a context that ends once this process has run for d. It returns its
// error, and context.DeadlineExceeded where that came of the end.
func withinOwnTime(parent context.Context, d time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer afterOwnTime(d, func() { cancel(context.DeadlineExceeded) })()
	err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}
