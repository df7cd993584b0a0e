package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// serverFacts is what a snapshot keeps of a server beside its load, for one request after the
// other.
type serverFacts struct {
	by             *connector.Connector
	spot           kvstate.HitPosition
	replaced       bool          // what the index received of it came from the engine that was there before
	pulls          bool          // it pulls what a third server holds
	missesHandoffs bool          // as a prefill server it has handed nothing over lately
	ready          time.Duration // until it can take requests for the snapshot's model
}

func (sn *Snapshotter) factsOf(s *pools.Server) serverFacts {
	c := connector.Of(s)
	return serverFacts{by: c, pulls: c.CanPull != nil && c.CanPull(s), replaced: sn.Locality != nil && sn.Locality.replaced(s)}
}

// ready is how long a server needs until it can take requests for a model at all: an
// adapter to load, a sleep to end.
func (sn *Snapshotter) ready(s *pools.Server, model string, now time.Time) time.Duration {
	wake := s.WakeTime(now)
	if view, adapter := s.Adapter(model, now); adapter {
		wake += sn.Cost.Adapter.Wait(cost.AdapterState(view))
	}
	return wake
}
