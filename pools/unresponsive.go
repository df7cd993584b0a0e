package pools

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// State is whether a server lives, as far as is known.
type State uint8

const (
	Down         State = iota // certainly: it refuses connections, reports a failure, or never answered
	Unresponsive              // it was up and answers late: it gets nothing new while most others are alive, and keeps what it has
	Alive
)

func (s State) String() string {
	return [...]string{"down", "unresponsive", "alive"}[s]
}

// How many late probes in a row, with no sign of life in between, are silence: what waits on
// the server is then worth sending to another.
const (
	silentAfter     = 2
	silentAfterMost = 5 // while most of the fleet is late: the fault is more likely the gateway's
)

// lateProbes is what late answers make of a server that was up. A late probe is no proof: the
// engine may be busy, the gateway or the network between them may be. It is a value, and
// each piece of evidence makes another one of it. Its zero value is none.
type lateProbes struct {
	late     int       // probes in a row that were late; 0: the server is not unresponsive
	since    time.Time // when the first of them was sent
	lastSign time.Time // last sign of life: an answer to whatever, a token of a stream
}

// afterLate is what a probe makes of it that was sent at a time and is late. A server that
// gave a sign since lives, whatever its probe waits for.
func (p lateProbes) afterLate(sent time.Time) lateProbes {
	if p.lastSign.After(sent) {
		return lateProbes{lastSign: p.lastSign}
	}
	if p.late == 0 {
		p.since = sent
	}
	p.late++
	return p
}

// afterSign is what a sign of life makes of it.
func (p lateProbes) afterSign(at time.Time) lateProbes { return lateProbes{lastSign: at} }

// silent reports whether the server is more than late. most: so is most of the fleet.
func (p lateProbes) silent(most bool) bool {
	if most {
		return p.late >= silentAfterMost
	}
	return p.late >= silentAfter
}

// vitals keeps the late probes of a server for many goroutines.
type vitals struct {
	born         time.Time
	signAt       atomic.Int64 // nanoseconds from born to the last sign that was taken in
	unresponsive atomic.Bool
	progressAt   atomic.Int64 // likewise, of the last progress of a leg

	mu         sync.Mutex // guards lateProbes
	lateProbes lateProbes
}

// signStep is how exactly signs of life are kept: streams give thousands a second.
const signStep = 10 * time.Millisecond

// sign takes in a sign of life, and returns since when the server was unresponsive if this
// ends it.
func (v *vitals) sign(now time.Time) (since time.Time, ended bool) {
	if unresponsive := v.unresponsive.Load(); !unresponsive && now.Sub(v.born)-time.Duration(v.signAt.Load()) < signStep {
		return time.Time{}, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.signAt.Store(int64(now.Sub(v.born)))
	since, ended = v.lateProbes.since, v.lateProbes.late > 0
	v.lateProbes = v.lateProbes.afterSign(now)
	v.unresponsive.Store(false)
	return since, ended
}

// late takes in a probe that was sent at a time and is late, and returns what is known now.
func (v *vitals) late(sent time.Time) lateProbes {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lateProbes = v.lateProbes.afterLate(sent)
	v.unresponsive.Store(v.lateProbes.late > 0)
	return v.lateProbes
}

// silent reports whether the server is more than late: see lateProbes.silent.
func (v *vitals) silent(most bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lateProbes.silent(most)
}

// clear forgets late probes: the server is certainly up or down.
func (v *vitals) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.lateProbes = lateProbes{lastSign: v.lateProbes.lastSign}
	v.unresponsive.Store(false)
}

// RecordAlive records that the server gave a sign of life: it answered, or a stream of its went on.
func (l *serverState) RecordAlive(now time.Time) {
	since, ended := l.vitals.sign(now)
	if !ended {
		return
	}
	defer l.countChange()
	if !l.health.Load().Up {
		return
	}
	for i, leg := range []Role{Prefill, Decode} {
		l.beginSlowStart(leg, now.Sub(since), l.maxSlowStart, now)
		l.breakers[i].ProbeNow(now)
	}
	l.changed.notify()
	l.states.notify()
}

// RecordProgress records that work on the server went on: a token of a stream has come. It is a
// sign of life, and more: an engine that only answers its probes may be stuck.
func (l *serverState) RecordProgress(now time.Time) {
	if n := int64(now.Sub(l.vitals.born)); n-l.vitals.progressAt.Load() > int64(signStep) {
		l.vitals.progressAt.Store(n)
	}
	l.RecordAlive(now)
}

// progressSince reports whether work went on after a time.
func (l *serverState) progressSince(t time.Time) bool {
	return l.vitals.progressAt.Load() > int64(t.Sub(l.vitals.born))
}

// RecordLate records that the server did not answer in time what was sent at a time. It is probed
// at once.
func (l *serverState) RecordLate(sent time.Time) {
	l.late(sent)
	l.ProbeNow()
}

func (l *serverState) late(sent time.Time) lateProbes {
	p := l.vitals.late(sent)
	l.countChange()
	if p.late == 1 {
		l.states.notify()
	}
	return p
}

// State is the worst state of the server and of those that step with it.
func (l *serverState) State() State { return min(l.ownState(), l.group.Load().state()) }

// DownFor is how long the server, or one that steps with it, has been down for certain: 0
// while none is, and for ever before it was up.
func (l *serverState) DownFor(now time.Time) time.Duration {
	down := l.ownDownFor(now)
	if g := l.group.Load(); g != nil {
		for _, m := range g.members {
			down = max(down, m.ownDownFor(now))
		}
	}
	return down
}

func (l *serverState) ownDownFor(now time.Time) time.Duration {
	if l.ownState() != Down {
		return 0
	}
	if since := l.downSince.Load(); since != nil {
		return now.Sub(*since)
	}
	return math.MaxInt64
}

func (l *serverState) ownState() State {
	switch {
	case !l.health.Load().Up:
		return Down
	case l.vitals.unresponsive.Load():
		return Unresponsive
	}
	return Alive
}

// mostLate reports whether most of the servers that are not down are unresponsive at once, which
// is more likely a fault of the gateway's own, or of its network, than of so many servers.
func (f *Fleet) mostLate() bool {
	late, all := 0, 0
	for _, s := range f.Servers() {
		switch s.ownState() {
		case Unresponsive:
			late++
			all++
		case Alive:
			all++
		}
	}
	return all > 1 && 2*late > all
}
