package pd

import (
	"context"

	"github.com/tandem-gateway/tandem/pools"
)

// decodeDriven runs one leg on decode, which brings prefill with it. What fails there may be
// either server's: only a probe request tells them apart.
func (o *Orchestrator) decodeDriven(ctx context.Context, st *requestState, b *binding) *LegError {
	st.bind.tried.handoff = nil
	withdraw := o.Binder.predictCached(&st.bind, b.prefill.Server(), b.decode.Server())
	defer b.prefill.Release()
	b.handoff = st.transfer(b).Handoff()
	b.prefill.MarkSent(b.chosen.Terms.TTFT())
	failed := o.decodeLeg(ctx, st, b)
	if failed == nil {
		b.prefill.RecordResult(nil)
		return nil
	}
	withdraw()
	b.decode.Release()
	if b.failedTransfer(failed) || failed.Kind == Timeout {
		st.bind.tried.exclude(PrefillLeg, b.prefill.Server().ID())
		b.prefill.Server().Suspect(pools.Prefill)
	}
	return failed
}
