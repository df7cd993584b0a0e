package pools

import (
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// promptBit tells the prompt that a decode lease computes from the lease itself.
const promptBit = 1 << 63

// Computes says that the request's prompt is computed where it is decoded: the server has
// that work ahead like a prefill, until Computed or the end of the lease.
func (l *Lease) Computes(work curve.Work) {
	l.server.mu.Lock()
	l.server.work[LegIndex(Prefill)].Begin(l.seq|promptBit, work, time.Now())
	l.server.mu.Unlock()
	l.server.fleet.NoteWork()
}

// Computed says that the prompt has been computed, and teaches the server's curve what it
// took.
func (l *Lease) Computed(newTokens, cached int) {
	now := time.Now()
	l.server.teachPrefill(l.seq|promptBit, l.sent, curve.PrefillFeatures(newTokens, cached), now)
	l.server.fleet.NoteWork()
	l.server.fleet.changed.note()
}

// teachPrefill ends a prefill and teaches the server's curve what it took: exactly if
// nothing else was on the server, else by the time since the answer before, of which other
// replicas' requests had their share.
func (s *Server) teachPrefill(id uint64, sent time.Time, x curve.Features, now time.Time) {
	others := s.othersInFlight(Prefill, now).Requests
	s.mu.Lock()
	work := &s.work[LegIndex(Prefill)]
	own := work.Len()
	ended, known := work.End(id, now)
	s.mu.Unlock()
	switch {
	case !known:
	case ended.Alone && others == 0:
		s.prefill.Observe(x, now.Sub(sent), now)
	default:
		s.prefill.Served(x, ended.Served*time.Duration(own)/time.Duration(own+others), now)
	}
}
