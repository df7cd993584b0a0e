package pd

import (
	"context"

	"github.com/tandem-gateway/tandem/pd/spans"
	"github.com/tandem-gateway/tandem/pools"
)

// prepare makes the servers of a binding able to take the request: both begin at
// once, and both must be ready before a leg is sent, since a hand-off would grow old
// while decode loads an adapter. Nearly always there is nothing to wait for.
func (o *Orchestrator) prepare(ctx context.Context, st *requestState, b *binding) *LegError {
	var awaitPrefill func(context.Context) error
	if b.prefill != nil {
		awaitPrefill = b.prefill.Prepare(st.req.Model)
	}
	awaitDecode := b.decode.Prepare(st.req.Model)
	if awaitPrefill == nil && awaitDecode == nil {
		return nil
	}
	ctx, span := spans.StartPrepare(ctx, o.Tracer)
	failed := unready(ctx, PrefillLeg, b.prefill, awaitPrefill)
	if failed == nil {
		leg := DecodeLeg
		if b.prefill == nil && !b.handoff.HasKV() {
			leg = AggregatedLeg
		}
		failed = unready(ctx, leg, b.decode, awaitDecode)
	}
	endLegSpan(span, failed)
	if failed != nil {
		b.release()
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
