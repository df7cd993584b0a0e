package queue

import (
	"context"
	"time"
)

// Limit is until when something is waited for, and the error of a wait that was in vain.
type Limit struct {
	Until time.Time
	Late  error
}

// LimitedBy is the nearer of two limits: one of the gateway's, with the error that says so,
// and the request's deadline. The zero time is no deadline.
func LimitedBy(deadline, until time.Time, late error) Limit {
	if !deadline.IsZero() && deadline.Before(until) {
		return Limit{deadline, ErrDeadline}
	}
	return Limit{until, late}
}

// Context ends with the limit; its cause is the error then.
func (l Limit) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, l.Until, l.Late)
}
