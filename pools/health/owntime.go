package health

import (
	"context"
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

// withOwnTimeout returns a context that ends, with context.DeadlineExceeded as its cause,
// once this process has run for d. Time in which it did not run does not count: answers that
// were there in time wait unread then, and counting it would take the gateway's fault
// for the servers'.
func withOwnTimeout(parent context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	own := ownTime{step: max(d/ownSteps, 1), last: time.Now()}
	go func() {
		look := time.NewTicker(own.step)
		defer look.Stop()
		for own.ran < d {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				own.look(time.Now())
			}
		}
		cancel(context.DeadlineExceeded)
	}()
	return ctx, func() { cancel(context.Canceled) }
}
