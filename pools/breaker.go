package pools

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

// ErrNeutral marks outcomes that say nothing about a server: the client left, or
// the request itself was refused. Breakers ignore what wraps it.
var ErrNeutral = errors.New("no verdict on the server")

// BreakerConfig says when a server is ejected softly and for how long.
type BreakerConfig struct {
	Consecutive int           // failures in a row that eject
	Ratio       float64       // share of failures that ejects, 0..1, over Window
	MinRequests int           // requests in Window before Ratio counts
	Window      time.Duration // rolling
	Ejection    time.Duration // the first; doubles with each that follows
	MaxEjection time.Duration
	Probe       time.Duration // how long a canary may take
}

// DefaultBreaker ejects after five failures in a row or half of twenty in ten
// seconds, for 1 s, 2 s, 4 s, ... up to a minute.
func DefaultBreaker() BreakerConfig {
	return BreakerConfig{
		Consecutive: 5,
		Ratio:       0.5,
		MinRequests: 20,
		Window:      10 * time.Second,
		Ejection:    time.Second,
		MaxEjection: time.Minute,
		Probe:       5 * time.Second,
	}
}

// breaker ejects one server for one leg. gobreaker counts the verdicts and says
// when they are too bad; it is told never to let a request through again by
// itself, since that request would be a client's. A canary proves the server, and
// then a new gate, which has seen nothing, takes the old one's place.
type breaker struct {
	cfg  BreakerConfig
	gate atomic.Pointer[gobreaker.TwoStepCircuitBreaker[struct{}]]

	openUntil atomic.Pointer[time.Time] // nil while closed; monotonic, as all times here: clocks are set
	trips     atomic.Uint64
	passed    atomic.Uint64 // canaries
	failed    atomic.Uint64
	changed   chan struct{} // tells the canary to look at the breaker again

	mu        sync.Mutex // guards the rest; taken under gobreaker's own lock, never around it
	streak    int        // ejections in a row
	row       int        // failures in a row, however far apart: gobreaker's fade with its window
	cut       int        // streams in a row that broke after their first event
	openedAt  time.Time
	closedAt  time.Time
	goodAt    time.Time // of the last good verdict
	suspected bool
	judgedAt  time.Time // of the last canary
	provedAt  time.Time // of the last that passed
	guilty    bool      // the last one failed

	// convicted is told that a canary failed, or that one passed after such, and when one
	// passed before them: what was charged to others since was this server's fault. It is
	// set before the first canary; nil: nobody is told.
	convicted func(since time.Time)

	disproved atomic.Bool // a canary got a wrong answer, and none has passed since
}

func newBreaker(cfg BreakerConfig) *breaker {
	b := &breaker{cfg: cfg, changed: make(chan struct{}, 1)}
	b.gate.Store(b.newGate())
	return b
}

func (b *breaker) newGate() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Interval:     b.cfg.Window,
		BucketPeriod: b.cfg.Window / 10,
		Timeout:      math.MaxInt64, // a gate that opened stays open
		ReadyToTrip:  b.readyToTrip,
		OnStateChange: func(_ string, _, to gobreaker.State) {
			if to == gobreaker.StateOpen && !b.out() { // a canary may have been faster
				b.eject(time.Now())
			}
		},
		IsExcluded: neutral,
	})
}

func neutral(err error) bool {
	return errors.Is(err, ErrNeutral) || errors.Is(err, context.Canceled)
}

func (b *breaker) readyToTrip(c gobreaker.Counts) bool {
	total := c.TotalSuccesses + c.TotalFailures
	return int(total) >= b.cfg.MinRequests && float64(c.TotalFailures) >= b.cfg.Ratio*float64(total)
}

// eject takes the server out, or keeps it out: longer each time in a row.
func (b *breaker) eject(now time.Time) {
	b.mu.Lock()
	if b.openUntil.Load() == nil {
		b.openedAt = now
		if !b.closedAt.IsZero() && now.Sub(b.closedAt) > b.cfg.MaxEjection {
			b.streak = 0
		}
	}
	b.openLocked(now.Add(b.ejection(b.streak)))
	b.streak++
	b.mu.Unlock()
	b.trips.Add(1)
	b.tell()
}

// openLocked keeps the server out until a time; a shorter time never replaces a longer one.
func (b *breaker) openLocked(until time.Time) {
	if was := b.openUntil.Load(); was == nil || was.Before(until) {
		b.openUntil.Store(&until)
	}
}

// ejection is the time out after streak ejections in a row before this one:
// doubling, capped, +-20 % so that gateways do not prove servers in step.
func (b *breaker) ejection(streak int) time.Duration {
	d := b.cfg.Ejection
	for range streak {
		if d *= 2; d >= b.cfg.MaxEjection {
			d = b.cfg.MaxEjection
			break
		}
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// tell wakes the canary.
func (b *breaker) tell() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// suspect asks for a canary: something failed that may have been the server, or
// its partner, or what lies between them.
func (b *breaker) suspect() {
	b.mu.Lock()
	b.suspected = true
	b.mu.Unlock()
	b.tell()
}

// proveNow makes the canary of an ejected server due at once: it was down and is
// up again, so it is most likely another process.
func (b *breaker) proveNow(now time.Time) {
	if until := b.openUntil.Load(); until != nil && now.Before(*until) && b.openUntil.CompareAndSwap(until, &now) {
		b.tell()
	}
}

// canaryDue returns when the next canary is due, false if none is. Suspicion
// sends at most one in each pause.
func (b *breaker) canaryDue(pause time.Duration) (time.Time, bool) {
	if until := b.openUntil.Load(); until != nil {
		return *until, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.judgedAt.Add(pause), b.suspected
}

// judge takes the verdict of a canary: nil lets the server take requests again,
// after the time that is returned; an error ejects it, or keeps it ejected.
func (b *breaker) judge(verdict error, now time.Time) (away time.Duration) {
	switch {
	case verdict == nil:
		b.disproved.Store(false)
	case errors.Is(verdict, ErrWrongAnswer):
		b.disproved.Store(true) // until one passes: that it does not answer, or is busy, is no proof
	}
	b.mu.Lock()
	b.suspected, b.judgedAt = false, now
	b.mu.Unlock()
	if errors.Is(verdict, ErrProbeBusy) {
		b.busy(now)
		return 0
	}
	b.convict(verdict != nil, now)
	if verdict != nil {
		b.failed.Add(1)
		b.eject(now)
		return 0
	}
	b.passed.Add(1)
	if b.openUntil.Load() == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate.Store(b.newGate())
	b.openUntil.Store(nil)
	b.closedAt, b.row, b.cut = now, 0, 0
	return now.Sub(b.openedAt)
}

// convict tells whose fault it was that transfers failed. It does so again when the server
// is well again: legs that were under way may have failed since.
func (b *breaker) convict(guilty bool, now time.Time) {
	b.mu.Lock()
	was, since := b.guilty, b.provedAt
	b.guilty = guilty
	if !guilty {
		b.provedAt = now
	}
	b.mu.Unlock()
	if (guilty || was) && b.convicted != nil {
		b.convicted(since)
	}
}

// busy takes the word of a server that has no place for a canary: that is no fault,
// and no proof either. An ejected one is asked again soon.
func (b *breaker) busy(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.openUntil.Load() != nil {
		b.openLocked(now.Add(b.ejection(0)))
	}
}

// servedSince reports whether a request had a good verdict after a time.
func (b *breaker) servedSince(t time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.goodAt.After(t)
}

// out reports whether the server takes no request: it was ejected and no canary
// has proved it since.
func (b *breaker) out() bool { return b.openUntil.Load() != nil }

// allow asks for a place. The verdict goes to done, once.
func (b *breaker) allow() (done func(error), err error) {
	if b.out() {
		return nil, gobreaker.ErrOpenState
	}
	gate := b.gate.Load()
	verdict, err := gate.Allow()
	if err != nil {
		return nil, err
	}
	return func(err error) {
		verdict(err)
		if gate == b.gate.Load() && !neutral(err) { // else it is of the time before the last canary
			b.count(err, time.Now())
		}
	}, nil
}

// count keeps failures in a row; each is doubt, which a canary settles.
func (b *breaker) count(err error, now time.Time) {
	if err == nil {
		b.mu.Lock()
		b.row, b.goodAt = 0, now
		b.mu.Unlock()
		return
	}
	b.mu.Lock()
	b.row++
	tooMany := b.row >= b.cfg.Consecutive
	b.mu.Unlock()
	if tooMany && !b.out() {
		b.eject(now)
	}
	b.suspect()
}

// fail counts a failure that no open claim stands for.
func (b *breaker) fail(err error) {
	if done, refused := b.allow(); refused == nil {
		done(err)
	}
}

// broke counts a stream that broke after its first event. gobreaker counts it as
// a failure, but the good first events in between keep failures from being in a
// row: as many streams that broke in a row eject as well.
func (b *breaker) broke(err error, now time.Time) {
	b.fail(err)
	b.mu.Lock()
	b.cut++
	tooMany := b.cut >= b.cfg.Consecutive
	b.mu.Unlock()
	if tooMany && !b.out() {
		b.eject(now)
	}
}

// ended counts a request that ended well, or was left by its client.
func (b *breaker) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = 0
}

// BreakerState is what metrics and people see of a breaker.
type BreakerState string

const (
	Closed   BreakerState = "closed"
	HalfOpen BreakerState = "half_open" // a canary is due or under way
	Open     BreakerState = "open"
)

func (b *breaker) state(now time.Time) BreakerState {
	switch until := b.openUntil.Load(); {
	case until == nil:
		return Closed
	case now.Before(*until):
		return Open
	}
	return HalfOpen
}

// Breaker returns the state of the server's breaker for one leg.
func (l *live) Breaker(leg Role, now time.Time) BreakerState {
	return l.breakers[LegIndex(leg)].state(now)
}

// Suspect asks for a canary on the leg: a transfer failed, and only the server's
// own work can tell whether it was the server's fault.
func (l *live) Suspect(leg Role) { l.breakers[LegIndex(leg)].suspect() }
