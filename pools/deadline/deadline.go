// Package deadline has one timer for many deadlines of which nearly all are met: an answer comes long before its server
// is taken to be silent. A timer for each costs as much as claiming a place on a server, and two pieces of memory.
package deadline

import (
	"sync"
	"time"
)

// Set is the deadlines that are neither met nor missed yet. Its zero value has none. It may be used by several
// goroutines, and none of its own is there but while deadlines are missed.
type Set[T any] struct {
	mu    sync.Mutex   // guards all below, and the deadlines' own
	first *Deadline[T] // of a list
	timer *time.Timer  // nil before the first
	looks time.Time    // when the timer goes off; zero: it does not
}

// Deadline is that of one T, a part of which it mostly is. Its zero value is in no Set.
type Deadline[T any] struct {
	of       *T
	missed   func(*T)
	by       time.Time
	next     *Deadline[T]
	previous *Deadline[T]
	state    state
}

type state uint8

const (
	isNew state = iota
	isSet
	isOver // met or missed
)

// Add has missed called once, in a goroutine of the set's, unless the deadline is met by a time. missed waits for
// nothing. A deadline that was added already is moved; one that was met or missed stays so.
func (s *Set[T]) Add(d *Deadline[T], of *T, by, now time.Time, missed func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch d.state {
	case isOver:
		return
	case isNew:
		if d.next = s.first; d.next != nil {
			d.next.previous = d
		}
		s.first, d.state = d, isSet
	}
	d.of, d.by, d.missed = of, by, missed
	s.lookLocked(by, now)
}

// Meet says that a deadline is met, in the set or before it was added. Twice is as good as once.
func (s *Set[T]) Meet(d *Deadline[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(d)
}

func (s *Set[T]) endLocked(d *Deadline[T]) {
	if d.state == isSet {
		if d.previous != nil {
			d.previous.next = d.next
		} else {
			s.first = d.next
		}
		if d.next != nil {
			d.next.previous = d.previous
		}
	}
	*d = Deadline[T]{state: isOver}
}

// lookLocked has the timer go off by a time.
func (s *Set[T]) lookLocked(by, now time.Time) {
	switch {
	case !s.looks.IsZero() && !by.Before(s.looks):
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(by.Sub(now), s.look)
	default:
		s.timer.Reset(by.Sub(now))
	}
	s.looks = by
}

// look says so of all that are missed by now, and looks again when the next may be.
func (s *Set[T]) look() {
	for _, d := range s.takeMissed(time.Now()) {
		d.missed(d.of)
	}
}

func (s *Set[T]) takeMissed(now time.Time) (missed []Deadline[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next time.Time // zero: none is left
	for d := s.first; d != nil; {
		following := d.next
		switch {
		case !d.by.After(now):
			missed = append(missed, *d)
			s.endLocked(d)
		case next.IsZero() || d.by.Before(next):
			next = d.by
		}
		d = following
	}
	s.looks = time.Time{}
	if !next.IsZero() {
		s.lookLocked(next, now)
	}
	return missed
}
