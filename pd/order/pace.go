package order

import (
	"math"
	"time"
)

// pace is how fast those who wait are served, as a share of what their servers would do by
// prediction: below 1 where decode has no room for them, or predictions are too short. It
// is measured while somebody waits and nobody may go, so that a lull says nothing.
type pace struct {
	work, time float64       // seconds of prefill that went, and of servers meanwhile; both fade
	went       float64       // seconds of prefill that went since the last look
	since      time.Duration // the last look
	waited     bool          // somebody waited at it
}

const (
	paceMemory = 10.0 // seconds
	paceTrust  = 1.0  // server seconds that count as served by prediction, before anything is known
	leastPace  = 0.1  // it must let enough wait to be proved wrong; more than 1 is not promised
)

// look notes that somebody waits and nobody may go.
func (p *pace) look(s *Servers) {
	if p.waited {
		passed := (s.Now - p.since).Seconds()
		keep := math.Exp(-passed / paceMemory)
		p.work = keep*p.work + p.went
		p.time *= keep
		for range s.aheads {
			p.time += passed
		}
	}
	p.went, p.since, p.waited = 0, s.Now, true
}

// lull notes that nobody waits.
func (p *pace) lull() { p.went, p.waited = 0, false }

// share is the pace, between its bounds.
func (p *pace) share() float64 {
	return min(max((p.work+paceTrust)/(p.time+paceTrust), leastPace), 1)
}
