package pools

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// ErrNeutral marks outcomes that say nothing about a server: the client left, or
// the request itself was refused. Breakers ignore what wraps it.
var ErrNeutral = errors.New("no verdict on the server")

var errProbeDeadline = errors.New("half-open probe gave no verdict in time")

// BreakerConfig says when a server is ejected softly and for how long.
type BreakerConfig struct {
	Consecutive int           // failures in a row that eject
	Ratio       float64       // share of failures that ejects, 0..1, over Window
	MinRequests int           // requests in Window before Ratio counts
	Window      time.Duration // rolling
	Ejection    time.Duration // the first; doubles with each that follows
	MaxEjection time.Duration
	Probe       time.Duration // how long a half-open server may take to prove itself
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

// breaker ejects one server for one leg. gobreaker counts and keeps the states;
// what it lacks is here: ejections that grow with jitter, a deadline for a probe
// that hangs, and a state that is read without a lock (its State() takes one).
type breaker struct {
	cfg  BreakerConfig
	gate *gobreaker.TwoStepCircuitBreaker[struct{}]

	openUntil atomic.Int64 // unix ns; 0 while closed
	trips     atomic.Uint64

	// Only touched inside OnStateChange, which gobreaker calls under its lock.
	streak   int
	closedAt time.Time
}

func newBreaker(cfg BreakerConfig) *breaker {
	b := &breaker{cfg: cfg}
	b.gate = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Interval:     cfg.Window,
		BucketPeriod: cfg.Window / 10,
		// gobreaker's open time is constant; openUntil is ours and grows. One
		// nanosecond leaves the decision to openUntil.
		Timeout:       1,
		ReadyToTrip:   b.readyToTrip,
		OnStateChange: func(_ string, _, to gobreaker.State) { b.changed(to, time.Now()) },
		IsExcluded: func(err error) bool {
			return errors.Is(err, ErrNeutral) || errors.Is(err, context.Canceled)
		},
	})
	return b
}

func (b *breaker) readyToTrip(c gobreaker.Counts) bool {
	if int(c.ConsecutiveFailures) >= b.cfg.Consecutive {
		return true
	}
	total := c.TotalSuccesses + c.TotalFailures
	return int(total) >= b.cfg.MinRequests && float64(c.TotalFailures) >= b.cfg.Ratio*float64(total)
}

func (b *breaker) changed(to gobreaker.State, now time.Time) {
	switch to {
	case gobreaker.StateOpen:
		if !b.closedAt.IsZero() && now.Sub(b.closedAt) > b.cfg.MaxEjection {
			b.streak = 0
		}
		b.openUntil.Store(now.Add(b.ejection(b.streak)).UnixNano())
		b.streak++
		b.trips.Add(1)
	case gobreaker.StateClosed:
		b.openUntil.Store(0)
		b.closedAt = now
	}
}

// ejection is the time out after streak ejections in a row before this one:
// doubling, capped, +-20 % so that gateways do not probe in step.
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

// ejected reports whether the server is out at the moment.
func (b *breaker) ejected(now time.Time) bool { return now.UnixNano() < b.openUntil.Load() }

// proving reports whether the server was ejected and has not yet answered well.
func (b *breaker) proving() bool { return b.openUntil.Load() != 0 }

// allow asks for a place. The verdict goes to done, once. A half-open server
// gets one request at a time; sent starts the clock on it, and when no verdict
// came within the probe time (or thrice the expected time, if longer) it is
// judged failed: a probe that hangs would otherwise keep the server out for ever.
func (b *breaker) allow(now time.Time) (p place, err error) {
	if b.ejected(now) {
		return place{}, gobreaker.ErrOpenState
	}
	probing := b.proving()
	verdict, err := b.gate.Allow()
	if err != nil {
		return place{}, err
	}
	if !probing {
		return place{sent: func(time.Duration) {}, done: verdict}, nil
	}
	var once sync.Once
	settle := func(err error) { once.Do(func() { verdict(err) }) }
	deadline := time.AfterFunc(time.Hour, func() { settle(errProbeDeadline) })
	return place{
		sent: func(expected time.Duration) { deadline.Reset(max(b.cfg.Probe, 3*expected)) },
		done: func(err error) {
			deadline.Stop()
			settle(err)
		},
	}, nil
}

// place is one request's stand with a breaker.
type place struct {
	sent func(expected time.Duration)
	done func(error)
}

// fail counts a failure that no open claim stands for.
func (b *breaker) fail(err error) {
	if done, refused := b.gate.Allow(); refused == nil {
		done(err)
	}
}

// BreakerState is what metrics and people see of a breaker.
type BreakerState string

const (
	Closed   BreakerState = "closed"
	HalfOpen BreakerState = "half_open"
	Open     BreakerState = "open"
)

func (b *breaker) state(now time.Time) BreakerState {
	switch {
	case b.ejected(now):
		return Open
	case b.proving():
		return HalfOpen
	}
	return Closed
}

// Breaker returns the state of the server's breaker for one leg.
func (l *live) Breaker(leg Role, now time.Time) BreakerState {
	return l.breakers[legIndex(leg)].state(now)
}
