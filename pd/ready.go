package pd

import (
	"context"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
)

// Ready reports whether requests are of use here: one could be served, or they are held
// until it can. Else it says what is missing. An unresponsive server counts as able, and one that
// is down until it has been for as long as a request waits at most.
func (o *Orchestrator) Ready() (bool, string) {
	if len(o.ScaleFromZero.WillServeModels()) > 0 {
		return true, ""
	}
	prefill, decode, alone := false, false, false
	now := time.Now()
	for _, s := range o.Fleet.Servers() {
		if down := s.DownFor(now); down > 0 && down >= o.Binder.Config.UnresponsiveWait {
			continue
		}
		decodes := s.Role.Serves(pools.Decode)
		prefill, decode = prefill || s.Role.Serves(pools.Prefill), decode || decodes
		alone = alone || decodes && o.Binder.servesAlone(s)
	}
	switch {
	case !decode:
		return false, "no decode server answers"
	case !prefill && !alone:
		return false, "no prefill server answers, and no decode server may work alone"
	}
	return true, ""
}

// servesAlone reports whether a decode server may compute prompts.
func (sn *Snapshotter) servesAlone(s *pools.Server) bool {
	by := connector.Of(s)
	return by.Aggregated && !(sn.Config.EnforceDisaggregation && s.Role == pools.Decode && by.Pairs)
}

// AwaitFirstProbes looks until it finds what it looks for: a model, or a server. It gives up when no server is left
// that was not probed yet, or when Config.UnresponsiveWait or the context is over. A gateway that has just
// started refuses nobody for what it does not know yet.
func (b *Binder) AwaitFirstProbes(ctx context.Context, look func() (found bool)) {
	if look() {
		return
	}
	changed, stop := b.Fleet.StateChanges()
	defer stop()
	patience, cancel := context.WithTimeout(ctx, b.Config.UnresponsiveWait)
	defer cancel()
	for waits := false; ; waits = true {
		known := !b.Fleet.AwaitsFirstProbe(pools.Prefill) && !b.Fleet.AwaitsFirstProbe(pools.Decode) // before the look
		if look() || known {
			return
		}
		if !waits {
			b.Metrics.unresponsiveWaits.WithLabelValues(pools.Decode.String()).Inc()
		}
		select {
		case <-changed:
		case <-patience.Done():
			return
		}
	}
}
