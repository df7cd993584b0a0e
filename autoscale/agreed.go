package autoscale

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// agreed is the time by which replicas measure and decide: their Redis's. What one
// measured at ten is added to what others measured at ten, and the wall clock of a
// machine may be an hour off.
type agreed struct {
	own   func() time.Time
	ask   func(context.Context) (time.Time, error) // Redis
	ahead atomic.Int64                             // nanoseconds that Redis is ahead of us, as last heard
}

// clockSlack is how far two clocks may be apart, since bins are ten seconds: within it the
// time that an answer takes must not make ours jump.
const clockSlack = time.Second

// now is Redis's time as far as it was heard, our own before.
func (a *agreed) now() time.Time { return a.own().Add(time.Duration(a.ahead.Load())) }

// here is an agreed time on our own clock.
func (a *agreed) here(t time.Time) time.Time { return t.Add(-time.Duration(a.ahead.Load())) }

// set asks for the time.
func (a *agreed) set(ctx context.Context) error {
	told, err := a.ask(ctx)
	if err != nil {
		return fmt.Errorf("time of replicas: %w", err)
	}
	// Without the monotonic reading, which no other machine has.
	if off := told.Sub(a.now().Round(0)); off.Abs() > clockSlack {
		a.ahead.Add(int64(off))
	}
	return nil
}
