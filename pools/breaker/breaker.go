package breaker

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// ErrNeutral marks outcomes that show nothing about a server: the client left, or
// the request itself was refused. Breakers ignore what wraps it.
var ErrNeutral = errors.New("no verdict on the server")

// Breaker ejects one server for one leg. gobreaker counts the verdicts and trips
// when they are too bad; it is configured never to let a request through again by
// itself, since that request would be a client's. A probe proves the server, and
// then a new gate, which has seen nothing, takes the old one's place.
type Breaker struct {
	cfg  Config
	gate atomic.Pointer[gobreaker.TwoStepCircuitBreaker[struct{}]]

	openUntil   atomic.Pointer[time.Time] // nil while closed; monotonic, as all times here: clocks are set
	ejections   atomic.Uint64
	passed      atomic.Uint64 // probes
	failed      atomic.Uint64
	failedCheck atomic.Bool   // a probe got a wrong answer, and none has passed since
	changed     chan struct{} // wakes what sends probes

	mu            sync.Mutex // guards the rest; taken under gobreaker's own lock, never around it
	ejectedInRow  int
	failedInRow   int // however far apart: gobreaker's fade with its window
	brokenStreams int // in a row, that broke after their first event
	openedAt      time.Time
	closedAt      time.Time
	succeededAt   time.Time // of the last good verdict
	suspected     bool
	probedAt      time.Time // of the last probe
	probePassedAt time.Time // of the last that passed
	atFault       bool      // the last one failed
	failure       string    // see Reason

	onBlame func(since time.Time) // see OnBlame
	onEject func(reason string)   // see OnEject
}

// New returns a closed breaker.
func New(cfg Config) *Breaker {
	b := &Breaker{cfg: cfg, changed: make(chan struct{}, 1)}
	b.gate.Store(b.newGate())
	return b
}

func (b *Breaker) newGate() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Interval:     b.cfg.Window,
		BucketPeriod: b.cfg.Window / 10,
		Timeout:      math.MaxInt64, // a gate that opened stays open
		ReadyToTrip:  b.readyToTrip,
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen && !b.Ejected() { // a probe may have been faster
				b.eject(time.Now())
			}
		},
		IsExcluded: neutral,
	})
}

func neutral(err error) bool {
	return errors.Is(err, ErrNeutral) || errors.Is(err, context.Canceled)
}

func (b *Breaker) readyToTrip(c gobreaker.Counts) bool {
	total := c.TotalSuccesses + c.TotalFailures
	return int(total) >= b.cfg.MinRequests && float64(c.TotalFailures) >= b.cfg.Ratio*float64(total)
}

// eject takes the server out, or keeps it out: longer each time in a row.
func (b *Breaker) eject(now time.Time) {
	b.mu.Lock()
	begins, reason := b.openUntil.Load() == nil, b.failure
	if begins {
		b.openedAt = now
		if !b.closedAt.IsZero() && now.Sub(b.closedAt) > b.cfg.MaxEjection {
			b.ejectedInRow = 0
		}
	}
	b.openLocked(now.Add(b.ejection(b.ejectedInRow)))
	b.ejectedInRow++
	b.mu.Unlock()
	b.ejections.Add(1)
	b.notify()
	if begins && b.onEject != nil {
		b.onEject(reason)
	}
}

// OnEject sets what is called when the server is ejected, with the reason, and not again while it stays out. It is called
// before the first request, and must not call the breaker.
func (b *Breaker) OnEject(ejected func(reason string)) { b.onEject = ejected }

// Reason is what the server failed with last while it is ejected, "" while it is not: the innermost error, for operators.
// It has no words of an engine that answers, and may name a host that is not found.
func (b *Breaker) Reason() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.openUntil.Load() == nil {
		return ""
	}
	return b.failure
}

// recordFailure keeps what the server failed with, before that may eject it.
func (b *Breaker) recordFailure(err error) {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = err.Error()
}

// openLocked keeps the server out until a time; a shorter time never replaces a longer one.
func (b *Breaker) openLocked(until time.Time) {
	if was := b.openUntil.Load(); was == nil || was.Before(until) {
		b.openUntil.Store(&until)
	}
}

// ejection is the time out after so many ejections in a row before this one:
// doubling, capped, +-20 % so that gateways do not prove servers in step.
func (b *Breaker) ejection(inRow int) time.Duration {
	d := b.cfg.Ejection
	for range inRow {
		if d *= 2; d >= b.cfg.MaxEjection {
			d = b.cfg.MaxEjection
			break
		}
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// Ejected reports whether the server takes no request: it was ejected and no probe
// has proved it since.
func (b *Breaker) Ejected() bool { return b.openUntil.Load() != nil }

// Verdict is what a request has yet to say of the server. The zero value goes to no breaker.
type Verdict struct {
	b    *Breaker
	gate *gobreaker.TwoStepCircuitBreaker[struct{}]
	done func(error)
}

// Allow asks for a place. Its verdict is to be said, once.
func (b *Breaker) Allow() (Verdict, error) {
	if b.Ejected() {
		return Verdict{}, gobreaker.ErrOpenState
	}
	gate := b.gate.Load()
	done, err := gate.Allow()
	if err != nil {
		return Verdict{}, err
	}
	return Verdict{b, gate, done}, nil
}

// Say counts how the server did.
func (v *Verdict) Say(err error) {
	b := v.b
	if b == nil {
		return
	}
	if err != nil && !neutral(err) {
		b.recordFailure(err)
	}
	v.done(err)
	if v.gate == b.gate.Load() && !neutral(err) { // else it is of the time before the last probe
		b.count(err, time.Now())
	}
}

// count keeps failures in a row; each is uncertain until a probe request resolves it.
func (b *Breaker) count(err error, now time.Time) {
	if err == nil {
		b.mu.Lock()
		b.failedInRow, b.succeededAt = 0, now
		b.mu.Unlock()
		return
	}
	b.mu.Lock()
	b.failedInRow++
	tooMany := b.failedInRow >= b.cfg.Consecutive
	b.mu.Unlock()
	if tooMany && !b.Ejected() {
		b.eject(now)
	}
	b.Suspect()
}

// fail counts a failure that no open claim stands for.
func (b *Breaker) fail(err error) {
	if verdict, refused := b.Allow(); refused == nil {
		verdict.Say(err)
	}
}

// RecordBrokenStream counts a stream that broke after its first event. gobreaker counts it as
// a failure, but the good first events in between keep failures from being in a
// row: as many streams that broke in a row eject as well.
func (b *Breaker) RecordBrokenStream(err error, now time.Time) {
	b.fail(err)
	if !neutral(err) {
		b.recordFailure(err)
	}
	b.mu.Lock()
	b.brokenStreams++
	tooMany := b.brokenStreams >= b.cfg.Consecutive
	b.mu.Unlock()
	if tooMany && !b.Ejected() {
		b.eject(now)
	}
}

// RecordEndedStream counts a request that ended well, or was left by its client.
func (b *Breaker) RecordEndedStream() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.brokenStreams = 0
}

// State is what metrics and people see of a breaker.
type State string

const (
	Closed   State = "closed"
	HalfOpen State = "half_open" // a probe is due or under way
	Open     State = "open"
)

// State returns the breaker's state.
func (b *Breaker) State(now time.Time) State {
	switch until := b.openUntil.Load(); {
	case until == nil:
		return Closed
	case now.Before(*until):
		return Open
	}
	return HalfOpen
}
