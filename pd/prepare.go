package pd

import (
	"context"

	"github.com/tandem-gateway/tandem/pools"
)

// prepare makes the servers of a binding able to take the request: both begin at
// once, and both must be ready before a leg is sent, since a hand-off would grow old
// while decode loads an adapter. Nearly always there is nothing to wait for.
func (o *Orchestrator) prepare(ctx context.Context, j *requestState, a binding) *LegError {
	var awaitPrefill func(context.Context) error
	if a.prefill != nil {
		awaitPrefill = a.prefill.Prepare(j.req.Model)
	}
	awaitDecode := a.decode.Prepare(j.req.Model)
	if awaitPrefill == nil && awaitDecode == nil {
		return nil
	}
	ctx, span := o.Tracer.Start(ctx, "prepare")
	failed := unready(ctx, PrefillLeg, a.prefill, awaitPrefill)
	if failed == nil {
		leg := DecodeLeg
		if a.prefill == nil && !a.handoff.HasKV() {
			leg = AloneLeg
		}
		failed = unready(ctx, leg, a.decode, awaitDecode)
	}
	endLegSpan(span, failed)
	if failed == nil {
		return nil
	}
	if a.prefill != nil {
		a.prefill.Release()
	}
	a.decode.Release()
	if failed.Kind == Gone {
		o.countStranded(a.handoff)
	}
	return failed
}

// unready waits for one server and says why it could not be made ready, nil if it is.
func unready(ctx context.Context, leg Leg, lease *pools.Lease, await func(context.Context) error) *LegError {
	if await == nil {
		return nil
	}
	err := await(ctx)
	if err == nil {
		return nil
	}
	failed := &LegError{Leg: leg, Server: lease.Server().ID(), Kind: Unready, Err: err}
	if ctx.Err() != nil {
		failed.Kind = Gone
	}
	return failed
}
