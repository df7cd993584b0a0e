package pd

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// Ready reports whether requests are of use here: one could be served, or they are held
// until it can. Else it says what is missing. An unresponsive server counts as able, and one that
// is down until it has been for as long as a request waits at most. One that drains is not: it gets no requests.
func (o *Orchestrator) Ready() (bool, string) {
	if len(o.ScaleFromZero.WillServeModels()) > 0 {
		return true, ""
	}
	prefill, decode, alone := false, false, false
	now := time.Now()
	for _, s := range o.Fleet.Servers() {
		if s.Drains() {
			continue
		}
		if down := s.DownFor(now); down > 0 && down >= o.Binder.Config.UnresponsiveWait {
			continue
		}
		decodes := s.Role.Serves(pools.Decode)
		prefill, decode = prefill || s.Role.Serves(pools.Prefill), decode || decodes
		alone = alone || decodes && o.Binder.servesAlone(s)
	}
	switch {
	case !decode:
		return false, "no decode server takes requests"
	case !prefill && !alone:
		return false, "no prefill server takes requests, and no decode server may work alone"
	}
	return true, ""
}

// servesAlone reports whether a decode server may compute prompts.
func (sn *Snapshotter) servesAlone(s *pools.Server) bool {
	by := connector.Of(s)
	return by.Aggregated && !(sn.Config.EnforceDisaggregation && s.Role == pools.Decode && by.Pairs)
}

// AwaitFirstProbes looks until it finds what a request looks for: a model, or a server. It gives up when no server is
// left that was not probed yet, or when Config.UnresponsiveWait is over: what the last look found holds then. A gateway
// that has just started refuses nobody for what it does not know yet. Meanwhile the request has its place in the queue,
// and counts as one that waits for servers. Errors: those of the queue, or the context's.
func (b *Binder) AwaitFirstProbes(ctx context.Context, r queue.Request, look func() (found bool)) error {
	if look() {
		return nil
	}
	changed, stop := b.Fleet.StateChanges()
	defer stop()
	isOver := func() bool {
		known := !b.Fleet.AwaitsFirstProbe(pools.Prefill) && !b.Fleet.AwaitsFirstProbe(pools.Decode) // before the look
		return look() || known
	}
	if isOver() {
		return nil
	}
	patience, cancel := queue.LimitedBy(r.Deadline, time.Now().Add(b.Config.UnresponsiveWait), queue.ErrTimeout).Context(ctx)
	defer cancel()
	entry, err := b.Queue.Enter(patience, r)
	if err != nil {
		return err
	}
	defer b.Queue.Leave(entry)
	b.Metrics.unresponsiveWaits.WithLabelValues(pools.Decode.String()).Inc()
	held, release := b.Queue.CountWaiting(patience, entry)
	for err == nil && !isOver() {
		select {
		case <-changed:
		case <-held.Done():
			err = context.Cause(held)
		}
	}
	if release() {
		return queue.ErrDisplaced
	}
	if errors.Is(err, queue.ErrTimeout) {
		return nil
	}
	return err
}
