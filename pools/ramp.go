package pools

import (
	"math"
	"time"
)

// rampFloor is the share with which a ramp begins, 0..1, as Envoy's slow start does.
const rampFloor = 0.1

// ramp is the gradual return of a server to one leg. A cold server that all
// requests find idle at once would be buried.
type ramp struct {
	since  time.Time
	window time.Duration
}

// share is how much of a fair share the server may have, 0..1.
func (r *ramp) share(now time.Time) float64 {
	if r == nil || now.Sub(r.since) >= r.window {
		return 1
	}
	return max(rampFloor, float64(now.Sub(r.since))/float64(r.window))
}

// returned begins a ramp: as long as the server was away, at most slowStart. A
// server that was away for a moment has lost nothing.
func (l *live) returned(leg Role, away, slowStart time.Duration, now time.Time) {
	l.ramps[LegIndex(leg)].Store(&ramp{since: now, window: min(away, slowStart)})
}

// unhurried leaves out the servers that are on a ramp and have as many requests
// in flight as it allows: a growing share of the mean of those that are not. When
// all are on a ramp, as after a start of the whole fleet, none is left out.
func unhurried(servers []*Server, leg Role, now time.Time) []*Server {
	requests, steady := 0, 0
	shares := make([]float64, len(servers))
	for i, s := range servers {
		shares[i] = s.ramps[LegIndex(leg)].Load().share(now)
		if shares[i] == 1 {
			steady++
		}
	}
	if steady == 0 || steady == len(servers) {
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
