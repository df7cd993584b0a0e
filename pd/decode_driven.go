package pd

import (
	"context"

	"github.com/tandem-gateway/tandem/pools"
)

// carried runs one leg on decode, which brings prefill with it. What fails there may be
// either server's: only a probe request tells them apart.
func (o *Orchestrator) carried(ctx context.Context, j *requestState, a binding) (*Answer, *LegError) {
	j.handoff = nil
	withdraw := o.Binder.predictCached(j, a.prefill.Server(), a.decode.Server())
	defer a.prefill.Release()
	a.handoff = o.transfer(j, a).Handoff()
	a.prefill.Sent(a.chosen.Terms.TTFT())
	answer, failed := o.decode(ctx, j, a)
	if failed == nil {
		a.prefill.Settle(nil)
		return answer, nil
	}
	withdraw()
	a.decode.Release()
	if a.failedTransfer(failed) || failed.Kind == Timeout {
		j.tried[tried{PrefillLeg, a.prefill.Server().ID()}] = true
		a.prefill.Server().Suspect(pools.Prefill)
	}
	return nil, failed
}
