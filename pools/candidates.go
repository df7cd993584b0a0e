package pools

import (
	"math"
	"slices"
	"time"
)

// Candidates returns the servers of one pool that may take a leg now, and
// whether the pool is in panic mode.
//
// Out at once, whatever their share: servers that are down or unresponsive, or step with one
// that is, are draining, do not serve the model, or have just answered a probe request wrongly.
// But where more are unresponsive than alive the fault is more likely the gateway's, and those
// that are late and not silent are as good as the others: few servers do not get the work of
// all. Where all are unresponsive there is none, and the request may wait: see UnresponsiveServers.
// Out softly: servers that were ejected and that no probe request has proved since. Soft
// ejection may take at most share of the servers that remain (but one of two,
// always); beyond that the breakers are more likely wrong than the servers, and all
// are used: panic mode. Servers that asked for a pause are left out as long as
// others remain, and so are those that return and have enough for now.
//
// The last servers of a leg that is needed are used whatever is known of them.
// Prefill mostly is not: without it, decode works alone.
//
// room is memory for them, of which nothing is read any more; nil: there is none.
func Candidates(room, servers []*Server, model string, leg Role, share float64, now time.Time) (usable []*Server, panicking bool) {
	up := aliveFor(room, servers, model, leg, now)
	if !slices.ContainsFunc(up, func(s *Server) bool { return s.isHeldBack(leg, now) }) {
		return limitSlowStarts(up, leg, now), false
	}
	sound, closed, rested := make([]*Server, 0, len(up)), make([]*Server, 0, len(up)), make([]*Server, 0, len(up))
	needed := false
	for _, s := range up {
		needed = needed || s.needs(leg)
		b := s.breakers[LegIndex(leg)]
		if b.FailedCheck() {
			continue
		}
		sound = append(sound, s)
		if b.Ejected() {
			continue
		}
		closed = append(closed, s)
		if !s.busy(now) {
			rested = append(rested, s)
		}
	}
	switch ejected := len(sound) - len(closed); {
	case len(sound) == 0 && needed:
		return up, len(up) > 0
	case ejected > mayEject(len(sound), share):
		return sound, true
	case len(rested) > 0 || !needed:
		closed = rested
	}
	return limitSlowStarts(closed, leg, now), false
}

// isHeldBack reports whether anything but its life speaks against a server that is alive, as it does of
// few: it answered a probe request wrongly, was ejected, or asked for a pause.
func (s *Server) isHeldBack(leg Role, now time.Time) bool {
	b := s.breakers[LegIndex(leg)]
	return b.FailedCheck() || b.Ejected() || s.busy(now)
}

// aliveFor returns the servers that could take a leg for all that is known of their lives:
// those that are alive, as are all that step with them, and where they are fewer than those
// unresponsive, the latter as well that are not silent.
func aliveFor(room, servers []*Server, model string, leg Role, now time.Time) []*Server {
	alive := slices.Grow(room[:0], len(servers))
	var late []*Server
	var last *group // whose members mostly follow each other
	lastState := Alive
	for _, s := range servers {
		state := s.ownState()
		if !s.Role.Serves(leg) || s.Drains() || state == Down || !s.Serves(model, now) {
			continue
		}
		if g := s.group.Load(); g != last {
			last, lastState = g, g.state()
		}
		switch min(state, lastState) {
		case Alive:
			alive = append(alive, s)
		case Unresponsive:
			late = append(late, s)
		}
	}
	if len(alive) == 0 || len(late) <= len(alive) {
		return alive
	}
	for _, s := range late {
		if !s.vitals.silent(true) {
			alive = append(alive, s)
		}
	}
	return alive
}

// UnresponsiveServers returns the servers of a pool that would take a leg if they were not
// unresponsive.
func UnresponsiveServers(servers []*Server, model string, leg Role, now time.Time) (unresponsive []*Server) {
	for _, s := range servers {
		if s.Role.Serves(leg) && !s.Drains() && s.State() == Unresponsive && s.Serves(model, now) {
			unresponsive = append(unresponsive, s)
		}
	}
	return unresponsive
}

// mayEject is how many of n servers may be out softly at once.
func mayEject(n int, share float64) int {
	if n < 2 {
		return 0
	}
	return max(1, int(math.Floor(share*float64(n))))
}

// EjectShare is the configured share of a pool that may be ejected softly.
func (f *Fleet) EjectShare() float64 { return f.cfg.EjectShare }
