package autoscale

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// sharedClock is the time by which replicas measure and decide: their Redis's. What one
// measured at ten is added to what others measured at ten, and the wall clock of a
// machine may be an hour off.
type sharedClock struct {
	own   func() time.Time
	ask   func(context.Context) (time.Time, error) // Redis
	ahead atomic.Int64                             // nanoseconds that Redis is ahead of us, when last asked
}

// clockSlack is how far two clocks may be apart, since bins are ten seconds: within it the
// time that an answer takes must not make ours jump.
const clockSlack = time.Second

// now is Redis's time as far as it is known, our own before.
func (c *sharedClock) now() time.Time { return c.own().Add(time.Duration(c.ahead.Load())) }

// local is an agreed time on our own clock.
func (c *sharedClock) local(t time.Time) time.Time { return t.Add(-time.Duration(c.ahead.Load())) }

// sync asks for the time.
func (c *sharedClock) sync(ctx context.Context) error {
	answered, err := c.ask(ctx)
	if err != nil {
		return fmt.Errorf("time of replicas: %w", err)
	}
	// Without the monotonic reading, which no other machine has.
	if off := answered.Sub(c.now().Round(0)); off.Abs() > clockSlack {
		c.ahead.Add(int64(off))
	}
	return nil
}
