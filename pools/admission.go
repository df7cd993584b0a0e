package pools

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
)

// admission is what keeps requests from a server that is alive.
type admission struct {
	breakers     [2]*breaker.Breaker // prefill, decode
	slowStarts   [2]atomic.Pointer[slowStart]
	maxSlowStart time.Duration             // of the longest one
	busyUntil    atomic.Pointer[time.Time] // the engine asked to be left alone until then
}

// MarkBusy asks for the server to be left alone for d: it answered 429 or 503,
// which is load and no fault. A shorter pause never replaces a longer one.
func (l *serverState) MarkBusy(d time.Duration) {
	defer l.countChange()
	until := time.Now().Add(d)
	for was := l.busyUntil.Load(); was == nil || was.Before(until); was = l.busyUntil.Load() {
		if l.busyUntil.CompareAndSwap(was, &until) {
			return
		}
	}
}

func (l *admission) busy(now time.Time) bool {
	until := l.busyUntil.Load()
	return until != nil && now.Before(*until)
}

// Breaker returns the state of the server's breaker for one leg.
func (l *serverState) Breaker(leg Role, now time.Time) breaker.State {
	return l.breakers[LegIndex(leg)].State(now)
}

// BreakerReason is what the server failed with last, in one leg, while it is ejected for it; "" while it is not.
func (l *serverState) BreakerReason(leg Role) string { return l.breakers[LegIndex(leg)].Reason() }

// Suspect asks for a probe of the leg: a transfer failed, and only the server's
// own work can tell whether it was the server's fault.
func (l *serverState) Suspect(leg Role) { l.breakers[LegIndex(leg)].Suspect() }

// slowStartFloor is the share with which a slow start begins, 0..1, as Envoy's slow start does.
const slowStartFloor = 0.1

// slowStart is the gradual return of a server to one leg. A cold server that all
// requests find idle at once would be buried.
type slowStart struct {
	since  time.Time
	window time.Duration
}

// share is how much of a fair share the server may have, 0..1.
func (r *slowStart) share(now time.Time) float64 {
	if r == nil || now.Sub(r.since) >= r.window {
		return 1
	}
	return max(slowStartFloor, float64(now.Sub(r.since))/float64(r.window))
}

// beginSlowStart begins a slow start: as long as the server was away, at most longest. A
// server that was away for a moment has lost nothing.
func (l *admission) beginSlowStart(leg Role, away, longest time.Duration, now time.Time) {
	l.slowStarts[LegIndex(leg)].Store(&slowStart{since: now, window: min(away, longest)})
}

// limitSlowStarts leaves out the servers that start slowly and have as many requests
// in flight as it allows: a growing share of the mean of those that are not. When
// all start slowly, as after a start of the whole fleet, none is left out.
func limitSlowStarts(servers []*Server, leg Role, now time.Time) []*Server {
	if !slices.ContainsFunc(servers, func(s *Server) bool { return s.slowStarts[LegIndex(leg)].Load().share(now) < 1 }) {
		return servers
	}
	requests, steady := 0, 0
	shares := make([]float64, len(servers))
	for i, s := range servers {
		shares[i] = s.slowStarts[LegIndex(leg)].Load().share(now)
		if shares[i] == 1 {
			steady++
		}
	}
	if steady == 0 {
		return servers
	}
	for i, s := range servers {
		if shares[i] == 1 {
			requests += s.InFlight(leg, now).Requests
		}
	}
	mean := float64(requests) / float64(steady)
	kept := servers[:0:0]
	for i, s := range servers {
		if shares[i] == 1 || float64(s.InFlight(leg, now).Requests) < math.Ceil(max(1, shares[i]*mean)) {
			kept = append(kept, s)
		}
	}
	return kept
}
