package pools

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// ErrRefused is returned by Claim when the server may not take one more.
var ErrRefused = errors.New("server refuses the claim")

var leaseSeq atomic.Uint64

// Lease is a place on a server. Settle says how the server did, Release that the
// request has left it; each counts once, in this order or Release alone.
type Lease struct {
	server   *Server
	leg      Role
	seq      uint64
	verdict  func(error)
	settled  atomic.Bool
	released atomic.Bool
	good     atomic.Bool // settled without an error, and not broken since
	sent     time.Time
	adapter  string                     // that Prepare took into use; empty: none
	entered  bool                       // Prepare counts on the server to stay awake
	overdue  atomic.Pointer[time.Timer] // nil before Sent
}

// Claim takes a place for one leg. With anyway set the breaker is not asked and
// hears no verdict: panic mode, in which a doubtful server is better than none.
func (s *Server) Claim(leg Role, work curve.Work, anyway bool) (*Lease, error) {
	if s.Drains() || !s.Role.Serves(leg) {
		return nil, fmt.Errorf("%s for %s: %w", s.id, leg, ErrRefused)
	}
	now := time.Now()
	verdict := func(error) {}
	if !anyway {
		var err error
		if verdict, err = s.breakers[LegIndex(leg)].Allow(); err != nil {
			return nil, fmt.Errorf("%s for %s: %w: %w", s.id, leg, ErrRefused, err)
		}
	}
	l := &Lease{server: s, leg: leg, seq: leaseSeq.Add(1), verdict: verdict}
	s.mu.Lock()
	s.work[LegIndex(leg)].Begin(l.seq, work, now)
	s.mu.Unlock()
	s.fleet.NoteWork()
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

// Sent says that the request is on its way now and should show a verdict in about
// the expected time. A place may be held for a while before: decode's, while
// prefill runs. A server that lets a request wait far longer is asked for a probe request.
func (l *Lease) Sent(expected time.Duration) {
	l.sent = time.Now()
	patience := max(overdueFloor, overdueFactor*expected)
	l.overdue.Store(time.AfterFunc(patience, func() { l.server.Suspect(l.leg) }))
}

// Settle tells the breaker how the server did: nil at the first content event,
// the error before it. Only the first call counts.
func (l *Lease) Settle(err error) {
	if !l.settled.CompareAndSwap(false, true) {
		return
	}
	if overdue := l.overdue.Load(); overdue != nil {
		overdue.Stop()
	}
	l.good.Store(err == nil)
	l.verdict(err)
}

// Unreached says that no connection was made in time: that is doubt about the server, unless
// it was heard since.
func (l *Lease) Unreached() { l.server.NoteLate(l.sent) }

// Broke counts a stream that broke after its first content event: a second
// failure, apart from the settled success.
func (l *Lease) Broke(err error) {
	if !l.settled.Load() {
		l.Settle(err)
		return
	}
	l.good.Store(false)
	l.server.breakers[LegIndex(l.leg)].Broke(err, time.Now())
}

// Release gives the place back. An unsettled lease is settled as neutral.
func (l *Lease) Release() {
	if !l.released.CompareAndSwap(false, true) {
		return
	}
	l.Settle(breaker.ErrNeutral)
	if l.good.Load() {
		l.server.breakers[LegIndex(l.leg)].Ended()
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
	defer s.fleet.changed.note()
	defer s.fleet.NoteWork()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work[LegIndex(l.leg)].End(l.seq, now)
	s.work[LegIndex(Prefill)].End(l.seq|promptBit, now)
}

// Prefilled releases the lease of a prefill that succeeded, and teaches the server's
// curve what it took. What the server waited for beside its work, when that was done, is
// none of it.
func (l *Lease) Prefilled(newTokens, cached int, beside time.Duration) {
	if !l.released.CompareAndSwap(false, true) {
		return
	}
	l.Settle(nil)
	now := time.Now()
	l.server.teachPrefill(l.seq, l.sent.Add(beside), curve.PrefillFeatures(newTokens, cached), now)
	l.end(now)
}
