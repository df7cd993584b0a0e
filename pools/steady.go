package pools

import "time"

// Version changes whenever something about the server changes that a choice goes by, but for what IsSteady leaves out.
// A choice that has looked at a server which is steady need not look again before it changes: of hundreds of servers
// few change from one request to the next, and what is known of one lies in many places.
func (l *serverState) Version() uint64 { return l.version.Load() }

// countChange says that something has changed. It is called behind the change: whoever has read the version before, and
// what was changed after it, reads both again.
func (l *serverState) countChange() { l.version.Add(1) }

// IsSteady reports whether nothing that a choice for a base model goes by changes while Version stays, save the load, and
// how long ago something was: how much of a curve is known (Fadings), and how far a slow start has come (StartsSlowly). It
// is false where time alone may change it, or another server: while it shares GPUs or steps with others, while something
// keeps requests from it, and where adapters come and go.
func (s *Server) IsSteady(model string, now time.Time) bool {
	if s.GPUs != "" || s.Standing(Prefill, now) == Judged || s.Standing(Decode, now) == Judged || s.MissesHandoffs(now) || s.LosesPieces(now) {
		return false
	}
	m, listed := s.Health().model(model)
	if listed {
		return m.Parent == ""
	}
	_, onDemand := s.fleet.cfg.Adapters.Find(model)
	return !onDemand
}

// LoadSteadyUntil returns until when its load does not change either while Version stays; the zero time is for ever. It is
// false while there is work on the server, which is done as time passes, and where other gateways use it.
func (s *Server) LoadSteadyUntil(now time.Time) (until time.Time, is bool) {
	if s.fleet.SharesWork() || s.hasWork(now) {
		return until, false
	}
	load := s.Load()
	if !load.FreshAt(now, s.fleet.cfg.ProbeInterval) {
		return until, true
	}
	if load.External.Known && load.External.Value != 0 { // others' prompts are taken to be computed as time passes
		return until, false
	}
	until = load.FreshUntil(s.fleet.cfg.ProbeInterval)
	if holds := s.shared.HoldsUntil(); !holds.Before(now) && holds.Before(until) {
		until = holds
	}
	return until, true
}

// Standing is what is known of whether a server may take a leg, beside whether it starts slowly (StartsSlowly).
type Standing uint8

const (
	Judged     Standing = iota // Candidates says so, by what the others are like
	Unhindered                 // nothing speaks against it
	Out                        // it is down for certain, or drains
)

// Standing returns what is known of the server by itself. Where none of a pool's servers is Judged, Candidates leaves out
// those that are Out, and none else but for slow starts.
func (s *Server) Standing(leg Role, now time.Time) Standing {
	state := s.ownState()
	switch {
	case s.group.Load() != nil:
		return Judged
	case s.Drains() || state == Down:
		return Out
	case state != Alive || s.isHeldBack(leg, now):
		return Judged
	}
	return Unhindered
}

// StartsSlowly is until when the server starts slowly in a leg.
func (s *Server) StartsSlowly(leg Role) time.Time {
	start := s.slowStarts[LegIndex(leg)].Load()
	if start == nil {
		return time.Time{}
	}
	return start.since.Add(start.window)
}

// hasWork reports whether this gateway has work on the server.
func (l *workInFlight) hasWork(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for leg := range l.work {
		if l.work[leg].Pass(now); l.work[leg].Len() > 0 {
			return true
		}
	}
	return false
}
