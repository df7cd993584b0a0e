package pools

import (
	"log/slog"
	"time"

	"github.com/tandem-gateway/tandem/pools/load"
)

// What a prober reports of a server: each probe ends as one of ProbePassed, ProbeLate and
// ProbeFailed, and ReportLoad follows one that passed.

// ProbePassed takes in a probe that was answered well, with the models that the engine
// serves. before is the health from before it was sent: an adapter that was loaded or
// unloaded since may not be in them as it is, and the next probe asks again.
func (s *Server) ProbePassed(before *Health, models []Model, now time.Time) {
	s.setUp(before, models, s.fleet.cfg.SlowStart, now)
	if !before.Up {
		s.life.Add(1)
		s.fleet.noteMissing()
	}
}

// ProbeLate takes in that a probe of a server that was up has no answer yet, and reports
// whether the server is in doubt now. What was sent to it may be worth giving to another.
func (s *Server) ProbeLate(sent time.Time) (inDoubt bool) {
	d := s.late(sent)
	if d.silent(s.fleet.mostLate()) {
		s.fall(Silent)
	}
	return d.late > 0
}

// ProbeFailed takes in a probe that was answered badly, or not at all by a server that was
// not up before either.
func (s *Server) ProbeFailed(before *Health, reason string) {
	s.setDown(reason)
	if !before.Up {
		s.fall(Fell)
	}
	s.fleet.noteMissing()
}

// ReportLoad keeps the load that was read from the engine, with what others than the
// gateways have sent to it.
func (s *Server) ReportLoad(load load.Load) {
	own := s.InFlight(Prefill, load.At).Plus(s.InFlight(Decode, load.At))
	load.External = load.Beside(own.Requests, own.Tokens)
	s.scraped.Store(&load)
}

// NewServer returns a server that no fleet has, for whoever asks it once.
func NewServer(spec Spec) *Server {
	f := NewFleet(Default(), slog.New(slog.DiscardHandler))
	s := f.server(spec, newLive(f.cfg))
	f.snapshot.Store(&[]*Server{s})
	return s
}
