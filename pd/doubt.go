package pd

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// Bind binds a request. While the servers that could take it are in doubt it waits
// for one of them to show that it lives, within Config.DoubtWait and its deadline, rather
// than be refused: what looks like the death of a whole role mostly passes, or is the
// gateway's own fault. Errors: ErrQueueTimeout, ErrDeadline,
// ErrDisplaced, *NoServerError, or the context's.
func (b *Binder) Bind(ctx context.Context, r *bindRequest) (*binding, error) {
	bound, err := b.takeTurn(ctx, r)
	var none *NoServerError
	if !errors.As(err, &none) {
		return bound, err
	}
	if r.doubtUntil.IsZero() {
		r.doubtUntil = time.Now().Add(b.Config.DoubtWait)
	}
	patience, cancel := limitedBy(r.req.Deadline, r.doubtUntil, err).context(ctx)
	defer cancel()
	changed, stop := b.Fleet.StateChanges()
	defer stop()
	doubted := b.mayLive(r, none.Role)
	for waits := false; ; {
		// Whatever changes from here on is told. What changed before is seen.
		bound, err = b.takeTurn(ctx, r)
		if !errors.As(err, &none) {
			return bound, err
		}
		was := doubted
		doubted = b.mayLive(r, none.Role)
		switch {
		case !doubted && was:
			continue // it may be alive since the last look; if it is not, it is down for certain
		case !doubted:
			return bound, err
		case !waits:
			waits = true
			b.Metrics.doubted.WithLabelValues(none.Role.String()).Inc()
		}
		if err := b.awaitChange(patience, r, changed); err != nil {
			return nil, err
		}
	}
}

// mayLive reports whether a server of a role is in doubt that a request has not failed on.
func (b *Binder) mayLive(r *bindRequest, role pools.Role) bool {
	for _, s := range pools.Doubted(b.Fleet.Servers(), r.req.Model, role, time.Now()) {
		failed := r.tried.has(PrefillLeg, s)
		if role == pools.Decode {
			failed = r.tried.has(DecodeLeg, s) || r.tried.has(AggregatedLeg, s)
		}
		if !failed {
			return true
		}
	}
	return false
}

// awaitChange counts a request as one that waits until something has changed.
func (b *Binder) awaitChange(ctx context.Context, r *bindRequest, changed <-chan struct{}) (err error) {
	if r.entry != nil { // else it continues a stream
		held, release := b.Queue.countWaiting(ctx, r.entry)
		ctx = held
		defer func() {
			if release() {
				err = ErrDisplaced
			}
		}()
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
