package pools

import (
	"net/http"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/tandem-gateway/tandem/pools/load"
)

// AsksORCA returns the format in which a leg on the server should ask for its load,
// "" where it should not. vLLM reports its first rank only, whichever answers.
func (s *Server) AsksORCA() string {
	if s.Rank != nil && *s.Rank != 0 {
		return ""
	}
	return s.fleet.cfg.ORCA
}

// NoteORCA takes the load out of an answer's headers. What cannot be read is
// counted, and the load stays as it was.
func (s *Server) NoteORCA(header http.Header, now time.Time) {
	switch report, err := load.ORCAOf(header); {
	case err != nil:
		s.reports.unreadable.Add(1)
	case report != nil:
		s.noteReport(report, now)
	}
}

// noteReport makes a report the load of the server.
func (s *Server) noteReport(report *orca.OrcaLoadReport, now time.Time) {
	load, ok := load.FromORCA(report)
	if !ok {
		s.reports.unreadable.Add(1)
		return
	}
	load.At = now
	own := s.InFlight(Prefill, now).Plus(s.InFlight(Decode, now))
	load.External = load.Beside(own.Requests, own.Tokens)
	s.reported.Store(&load)
	s.reports.read.Add(1)
}
