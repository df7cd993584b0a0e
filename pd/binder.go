package pd

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/leader"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// Binder gives requests their servers: late, when the prefill server that is best for one is
// about to be free, or at once. Its fields are set once, before the first request.
type Binder struct {
	*Chooser
	Queue  *queue.Queue
	Late   *Decider         // nil: requests are bound as they arrive
	Leader *leader.Follower // the replica that decides for several; nil: there is none
	Tracer trace.Tracer
}

// Bind binds a request. While the servers that could take it are unresponsive, or were not probed
// yet, it waits for one of them to show that it lives, within Config.UnresponsiveWait and its
// deadline, rather than be refused: what looks like the death of a whole role mostly passes, or is
// the gateway's own fault. Errors: those of pd/queue (ErrTimeout, ErrDeadline, ErrDisplaced),
// *NoServerError, or the context's.
func (b *Binder) Bind(ctx context.Context, r *bindRequest) (*binding, error) {
	bound, err := b.takeTurn(ctx, r)
	if err == nil {
		return bound, nil
	}
	var none *NoServerError
	if !errors.As(err, &none) {
		return nil, err
	}
	if r.unresponsiveUntil.IsZero() {
		r.unresponsiveUntil = time.Now().Add(b.Config.UnresponsiveWait)
	}
	patience, cancel := queue.LimitedBy(r.req.Deadline, r.unresponsiveUntil, err).Context(ctx)
	defer cancel()
	changed, stop := b.Fleet.StateChanges()
	defer stop()
	mayLive := b.mayLive(r, none)
	for waits := false; ; {
		// Whatever changes from here on is signalled. What changed before is seen.
		bound, err = b.takeTurn(ctx, r)
		if !errors.As(err, &none) {
			return bound, err
		}
		was := mayLive
		mayLive = b.mayLive(r, none)
		switch {
		case !mayLive && was:
			continue // it may be alive since the last look; if it is not, it is down for certain
		case !mayLive:
			return bound, err
		case !waits:
			waits = true
			b.Metrics.unresponsiveWaits.WithLabelValues(none.Role.String()).Inc()
		}
		if err := b.awaitChange(patience, r, changed); err != nil {
			return nil, err
		}
	}
}

// errBindNow says that a request is to be bound at once: no decider says whose turn it is, it
// has had its turn, or what was decided holds no more.
var errBindNow = errors.New("the request is to be bound at once")

// takeTurn gives a request its servers, claimed: when it is its turn, or at once where that
// comes to nothing. Errors: Bind's.
func (b *Binder) takeTurn(ctx context.Context, r *bindRequest) (bound *binding, err error) {
	ctx, span := spans.StartChoice(ctx, b.Tracer, r.cause)
	defer func() { spans.End(span, err) }()
	b.setCertain(r)
	bound, err = b.awaitTurn(ctx, r)
	var none *NoServerError // that may be chosen beside all others, some of which it may not use
	if errors.Is(err, errBindNow) || errors.As(err, &none) {
		r.pieces = 0
		bound, err = b.bindNow(r)
	}
	if err != nil {
		return nil, err
	}
	spans.RecordChoice(span, &bound.choice)
	return bound, nil
}

// awaitTurn waits for the request's turn. errBindNow where requests are bound on arrival, and where
// this one has had its turn or generates nothing.
func (b *Binder) awaitTurn(ctx context.Context, r *bindRequest) (*binding, error) {
	if b.Late == nil || r.hadTurn() || !r.req.Dialect.Split {
		return nil, errBindNow
	}
	r.pieces = b.mayCut(r)
	start := time.Now()
	defer func() { r.waited += time.Since(start) }()
	return b.bindLate(ctx, r, start)
}

// bindLate lets the replica that decides for several say whose turn it is, or our own decider.
// Where several decide apart, each would think that it alone keeps the servers busy.
func (b *Binder) bindLate(ctx context.Context, r *bindRequest, now time.Time) (*binding, error) {
	if b.Leader.Follows() {
		return b.whileCounted(ctx, r, func(ctx context.Context) (*binding, error) { return b.follow(ctx, r) })
	}
	if b.Fleet.OthersBusy(now) && !b.Leader.Leads() {
		return nil, errBindNow
	}
	w := b.Late.arrive(r)
	if w.isSettled() { // it has not waited, or for a moment
		g := b.Late.result(w)
		b.countDisplaced(r, g.err)
		return g.received()
	}
	return b.whileCounted(ctx, r, func(ctx context.Context) (*binding, error) { return b.Late.await(ctx, w) })
}

// whileCounted waits for a request's servers. Until then the request counts as one that waits, and may
// be displaced; but not what is left of a prompt, which has begun.
func (b *Binder) whileCounted(ctx context.Context, r *bindRequest, wait func(context.Context) (*binding, error)) (*binding, error) {
	if r.begun != nil {
		return wait(ctx)
	}
	held, release := b.Queue.CountWaiting(ctx, r.entry)
	bound, err := wait(held)
	if release() { // displaced, if need be at the very moment of its turn
		if err == nil {
			bound.undo()
		}
		return nil, queue.ErrDisplaced
	}
	b.countDisplaced(r, err)
	return bound, err
}

// countDisplaced counts a wait that the decider has ended in favour of another request's.
func (b *Binder) countDisplaced(r *bindRequest, err error) {
	if r.begun == nil && errors.Is(err, queue.ErrDisplaced) {
		b.Queue.CountDisplaced()
	}
}

// follow lets the replica that decides say when it is the request's turn, and where. Its
// servers are claimed here: by then something may have changed that only this replica
// knows.
func (b *Binder) follow(ctx context.Context, r *bindRequest) (*binding, error) {
	ctx, cancel := b.Late.limit(r).Context(ctx)
	defer cancel()
	turn, taken, err := b.Leader.Bind(ctx, b.remoteRequest(r))
	var timeout *leader.Timeout
	switch {
	case errors.Is(err, leader.ErrNoLeader):
		return nil, errBindNow
	case errors.As(err, &timeout):
		return nil, &queue.Refusal{Late: b.Late.limit(r).Late, Return: timeout.Return}
	case err != nil:
		return nil, err
	}
	defer taken() // once the work is claimed, or the turn given up
	if begun := r.begun; begun != nil && (turn.Prefill != begun.prefill || turn.Decode != begun.decode) {
		return nil, errBindNow // a leader of an older version knows nothing of pieces
	}
	return b.claimPair(r, turn.Prefill, turn.Decode)
}

// mayLive reports whether a server of the role that is missing was not probed yet, or is unresponsive and
// the request has not failed on it.
func (b *Binder) mayLive(r *bindRequest, missing *NoServerError) bool {
	role := missing.Role
	if b.Fleet.AwaitsFirstProbe(role) || missing.NoPair && b.Fleet.AwaitsFirstProbe(pools.Decode) {
		return true
	}
	for _, s := range pools.UnresponsiveServers(b.Fleet.Servers(), r.req.Model, role, time.Now()) {
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
		held, release := b.Queue.CountWaiting(ctx, r.entry)
		ctx = held
		defer func() {
			if release() {
				err = queue.ErrDisplaced
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
