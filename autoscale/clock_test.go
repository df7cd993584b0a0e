package autoscale

import "time"

// clock is a time that a test sets.
type clock struct{ at time.Time }

func (c *clock) Now() time.Time { return c.at }

func (c *clock) pass(d time.Duration) { c.at = c.at.Add(d) }

func newClock() *clock { return &clock{time.Unix(1_700_000_000, 0)} }
