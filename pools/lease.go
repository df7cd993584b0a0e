package pools

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/deadline"
)

// ErrRefused is returned by Claim when the server may not take one more.
var ErrRefused = errors.New("server refuses the claim")

var leaseSeq atomic.Uint64

// Lease is a place on a server. RecordResult reports how the server did, Release that the
// request has left it; each counts once, in this order or Release alone.
type Lease struct {
	server    *Server
	leg       Role
	seq       uint64
	verdict   breaker.Verdict
	recorded  atomic.Bool
	released  atomic.Bool
	succeeded atomic.Bool // recorded without an error, and not broken since
	sent      time.Time
	adapter   string         // that Prepare took into use; empty: none
	entered   bool           // Prepare counts on the server to stay awake
	answers   int            // requests of the engine that it is
	computed  curve.Features // of the prompt that was computed there; zero: none. Guarded by server.mu

	overdue deadline.Deadline[Lease]
}

// Claim takes a place for one leg now. With ignoreBreakers set the breaker is not asked and
// receives no result: panic mode, in which an unresponsive server is better than none.
func (s *Server) Claim(leg Role, work curve.Work, ignoreBreakers bool, now time.Time) (*Lease, error) {
	if s.Drains() || !s.Role.Serves(leg) {
		return nil, fmt.Errorf("%s for %s: %w", s.id, leg, ErrRefused)
	}
	var verdict breaker.Verdict
	if !ignoreBreakers {
		var err error
		if verdict, err = s.breakers[LegIndex(leg)].Allow(); err != nil {
			return nil, fmt.Errorf("%s for %s: %w: %w", s.id, leg, ErrRefused, err)
		}
	}
	l := &Lease{server: s, leg: leg, seq: leaseSeq.Add(1), verdict: verdict, answers: max(1, work.Answers)}
	s.mu.Lock()
	s.work[LegIndex(leg)].Begin(l.seq, work, now)
	s.mu.Unlock()
	s.countChange()
	s.fleet.NotifyWork()
	return l, nil
}

// Server returns where the place is.
func (l *Lease) Server() *Server { return l.server }

// Leg returns what the place is for.
func (l *Lease) Leg() Role { return l.leg }

// A request is overdue when it has waited this long, and so many times what was
// expected.
const (
	overdueFloor  = 2 * time.Second
	overdueFactor = 4
)

// MarkSent records that the request is on its way now; a result is expected in about
// the expected time. A place may be held for a while before: decode's, while
// prefill runs. Its KV is in use from now on. A server that lets a request wait far longer is asked for a probe request.
func (l *Lease) MarkSent(expected time.Duration, now time.Time) {
	l.sent = now
	if l.leg == Decode {
		l.server.mu.Lock()
		l.server.work[LegIndex(Decode)].Came(l.seq)
		l.server.mu.Unlock()
	}
	l.server.overdue.Add(&l.overdue, l, now.Add(max(overdueFloor, overdueFactor*expected)), now, (*Lease).suspect)
}

// suspect has the server asked for a probe request.
func (l *Lease) suspect() { l.server.Suspect(l.leg) }

// RecordResult reports to the breaker how the server did: nil at the first content event,
// the error before it. Only the first call counts.
func (l *Lease) RecordResult(err error) {
	if !l.recorded.CompareAndSwap(false, true) {
		return
	}
	l.server.overdue.Meet(&l.overdue)
	l.succeeded.Store(err == nil)
	l.verdict.Say(err)
}

// RecordUnreachable records that no connection was made in time: the server is unresponsive, unless
// it gave a sign of life since.
func (l *Lease) RecordUnreachable() { l.server.RecordLate(l.sent) }

// RecordBrokenStream counts a stream that broke after its first content event: a second
// failure, apart from the recorded success.
func (l *Lease) RecordBrokenStream(err error) {
	if !l.recorded.Load() {
		l.RecordResult(err)
		return
	}
	l.succeeded.Store(false)
	l.server.breakers[LegIndex(l.leg)].RecordBrokenStream(err, time.Now())
}

// Release gives the place back. A lease without a result is recorded as neutral.
func (l *Lease) Release() {
	if !l.released.CompareAndSwap(false, true) {
		return
	}
	l.RecordResult(breaker.ErrNeutral)
	if l.succeeded.Load() {
		l.server.breakers[LegIndex(l.leg)].RecordEndedStream()
	}
	l.end(time.Now())
}

func (l *Lease) end(now time.Time) {
	s := l.server
	if l.entered {
		s.gpus.Leave(now)
	}
	if l.adapter != "" {
		s.loadRequests.release(l.adapter, time.Now())
	}
	defer s.fleet.changed.notify()
	defer s.fleet.NotifyWork()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work[LegIndex(l.leg)].End(l.seq, now)
	s.work[LegIndex(Prefill)].End(l.seq|promptBit, now)
	if !l.sent.IsZero() {
		s.prefill.EndMetered(l.computed, l.answers)
	}
}

// ReleasePrefilled releases the lease of a prefill that succeeded, and adds what it took to
// the server's curve. beside is how long the server is predicted to have waited for something other than its work:
// it does not count.
func (l *Lease) ReleasePrefilled(newTokens, cached int, beside time.Duration) {
	l.releasePrefilled(curve.PrefillFeatures(newTokens, cached), beside, took)
}

// ReleasePrefilledBy is ReleasePrefilled where nothing says when the prefill was done, only that it is by
// now: the curve learns what it took at the most, and what the engine's clock says.
func (l *Lease) ReleasePrefilledBy(newTokens, cached int) {
	l.releasePrefilled(curve.PrefillFeatures(newTokens, cached), 0, tookAtMost)
}

func (l *Lease) releasePrefilled(x curve.Features, beside time.Duration, shows shown) {
	if !l.released.CompareAndSwap(false, true) {
		return
	}
	l.RecordResult(nil)
	now := time.Now()
	l.endPrompt(x, shows, 0, beside, now)
	l.end(now)
}
