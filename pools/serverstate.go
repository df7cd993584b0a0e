package pools

import (
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/address"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/deadline"
	"github.com/tandem-gateway/tandem/pools/load"
)

// serverState is what changes about a server while requests run, of each trade in a struct
// and a file of its own. It is created when the server is first seen and survives reloads of
// the configuration.
type serverState struct {
	version atomic.Uint64 // see Version
	liveness
	admission
	capabilities
	engineLoad
	workInFlight
	overdue deadline.Set[Lease] // requests that wait for a result
	speed
	standbyState
	drains   drains
	handoffs handoffs // of prefill
	lostPieces
	addresses *address.Book
	group     atomic.Pointer[group] // nil: it steps by itself
	changed   *changes              // of the fleet; nil: nothing is notified
	states    *changes              // of servers' states; nil: nothing is notified
}

func newServerState(cfg Config) *serverState {
	l := &serverState{addresses: address.NewBook()}
	l.recheck = make(chan struct{}, 1)
	l.vitals.born = time.Now()
	l.health.Store(&Health{Reason: notProbed})
	l.capabilities.identity.Store(newIdentity(Identity{}, false))
	l.loadRequests, l.wakeRequests = newLoadRequests(), newWakeRequests()
	l.maxSlowStart = cfg.SlowStart
	for i := range l.breakers {
		l.breakers[i] = breaker.New(cfg.Breaker)
	}
	l.maxAge = 3 * cfg.ProbeInterval
	l.scraped.Store(&load.Load{})
	l.reported.Store(&load.Load{})
	l.work[LegIndex(Prefill)].StepTokens = cfg.StepTokens
	l.prefill = curve.NewLearned(cfg.Prefill, []curve.Features{curve.PrefillFeatures(256, 0), curve.PrefillFeatures(4096, 0), curve.PrefillFeatures(32768, 0)}, cfg.Forgetting)
	l.step = curve.NewLearned(cfg.Step, []curve.Features{curve.StepFeatures(1, 2000), curve.StepFeatures(32, 100_000), curve.StepFeatures(128, 500_000)}, cfg.Forgetting)
	l.prefill.CountChanges(&l.version)
	l.step.CountChanges(&l.version)
	l.evidence.Measured = cfg.Measured
	return l
}
