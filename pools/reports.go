package pools

import (
	"net/http"
	"sync/atomic"
	"time"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"

	"github.com/tandem-gateway/tandem/pools/load"
)

// engineLoad is what the engine reports of its load.
type engineLoad struct {
	scraped  atomic.Pointer[load.Load]
	reported atomic.Pointer[load.Load] // by ORCA
	reports  struct{ read, unreadable atomic.Uint64 }
	maxAge   time.Duration // load older than this is not believed
}

// Load returns what the engine reported last; its zero value is all unknown. What an
// answer or a stream reports counts before a scrape that is older, and a
// scrape fills in what they lack.
func (l *engineLoad) Load() load.Load {
	scraped, reported := l.scraped.Load(), l.reported.Load()
	if reported.At.After(scraped.At) {
		return reported.FilledFrom(*scraped, l.maxAge)
	}
	return *scraped
}

// AsksORCA returns the format in which a leg on the server should ask for its load,
// "" where it should not. vLLM reports its first rank only, whichever answers.
func (s *Server) AsksORCA() string {
	if s.Rank != nil && *s.Rank != 0 {
		return ""
	}
	return s.fleet.cfg.ORCA
}

// RecordORCA takes the load out of an answer's headers. What cannot be read is
// counted, and the load stays as it was.
func (s *Server) RecordORCA(header http.Header, now time.Time) {
	switch report, err := load.ORCAOf(header); {
	case err != nil:
		s.reports.unreadable.Add(1)
	case report != nil:
		s.recordReport(report, now)
	}
}

// recordReport makes a report the load of the server.
func (s *Server) recordReport(report *orca.OrcaLoadReport, now time.Time) {
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
