package pools

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
)

// ProbeRequestDue returns when a probe request is to prove the server for a leg, whether one is to
// at all, and what says that this may have changed.
func (s *Server) ProbeRequestDue(leg Role) (at time.Time, wanted bool, changed <-chan struct{}) {
	b := s.breakers[LegIndex(leg)]
	at, wanted = b.ProbeDue(s.fleet.cfg.ProbeInterval)
	return at, wanted, b.Changed()
}

// ProbeRequest is one probe request to a server for a leg, from when it was sent.
type ProbeRequest struct {
	server  *Server
	leg     Role
	ejected bool
	sent    time.Time
}

// BeginProbeRequest is to be called when the probe request is sent.
func (s *Server) BeginProbeRequest(leg Role, now time.Time) ProbeRequest {
	return ProbeRequest{server: s, leg: leg, ejected: s.breakers[LegIndex(leg)].Ejected(), sent: now}
}

// Ejected reports whether the server was ejected for the leg when the request was sent.
func (p ProbeRequest) Ejected() bool { return p.ejected }

// End takes in how the probe request went: nil if it was answered well,
// context.DeadlineExceeded if it was not in time. It returns how long the server was out, and
// as what the outcome counts: one that waits while others are served, or have tokens, only
// says that the server is busy.
func (p ProbeRequest) End(err error, now time.Time) (away time.Duration, counted error) {
	s, b := p.server, p.server.breakers[LegIndex(p.leg)]
	if errors.Is(err, context.DeadlineExceeded) && (b.ServedSince(p.sent) || s.progressSince(p.sent)) {
		err = breaker.ErrBusy
	}
	away = b.RecordProbe(err, now)
	switch {
	case err == nil && p.ejected:
		s.beginSlowStart(p.leg, away, s.fleet.cfg.SlowStart, now)
	case errors.Is(err, context.DeadlineExceeded):
		s.reportDown(Hangs) // what others wait for there may not come either
	}
	return away, err
}

// RootCause is the innermost of the errors that err wraps: short, and without addresses.
func RootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
