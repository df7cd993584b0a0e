package pd

import (
	"context"
	"net/http"
	"net/url"

	"github.com/tandem-gateway/tandem/pools"
)

// sidecar is a decode server behind llm-d's sidecar: it is told in a header which
// prefill server to call, and does the rest itself. The header is sent, and never taken
// from a client (llm-d-router pkg/common/routing/common.go).
var sidecar = &connector{
	carried: true, pairs: true, alone: true, tellsCached: true,
	decode: func(t *transfer, _ []byte) handed {
		leg := t.req.legWith()
		if u, err := url.Parse(t.from.URL); err == nil { // the spec was validated
			leg.header = http.Header{"X-Prefiller-Host-Port": {u.Host}}
		}
		return handed{leg: leg, kept: true}
	},
}

// carried runs one leg on decode, which brings prefill with it. What fails there may be
// either server's: only a canary tells them apart.
func (o *Orchestrator) carried(ctx context.Context, j *requestState, a binding) (*Answer, *LegError) {
	j.handoff = nil
	withdraw := o.Binder.predictCached(j, a.prefill.Server(), a.decode.Server())
	defer a.prefill.Release()
	t := newTransfer(j, a)
	a.handoff = t.handoff()
	a.handoff.leg, a.handoff.Kept = t.connector().decode(t, nil).leg, true
	a.prefill.Sent(a.chosen.Terms.TTFT())
	answer, failed := o.decode(ctx, j, a)
	if failed == nil {
		a.prefill.Settle(nil)
		return answer, nil
	}
	withdraw()
	a.decode.Release()
	if a.failedTransfer(failed) || failed.Kind == Timeout {
		j.tried[tried{PrefillLeg, t.from.ID()}] = true
		t.from.Suspect(pools.Prefill)
	}
	return nil, failed
}
