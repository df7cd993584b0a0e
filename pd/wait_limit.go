package pd

import (
	"context"
	"time"
)

// waitLimit is until when something is waited for, and the error of a wait that was in vain.
type waitLimit struct {
	until time.Time
	late  error
}

// limitedBy is the nearer of two limits: one of the gateway's, with the error that says so,
// and the request's deadline. The zero time is no deadline.
func limitedBy(deadline, until time.Time, late error) waitLimit {
	if !deadline.IsZero() && deadline.Before(until) {
		return waitLimit{deadline, ErrDeadline}
	}
	return waitLimit{until, late}
}

// context ends with the limit; its cause is the error then.
func (l waitLimit) context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, l.until, l.late)
}
