package order

import (
	"math"
	"time"
)

// serviceRate is how fast waiting requests are served, as a share of what prefill servers would do by
// prediction: below 1 where predictions are too short, above it where they are too long or decode servers
// compute prompts too. It is measured while requests wait that
// decode has KV room for and none may go, so that neither a lull nor a want of room says anything.
type serviceRate struct {
	work, time float64       // seconds of prefill that went, and of servers meanwhile; both fade
	went       float64       // seconds of prefill that went since the last sample
	since      time.Duration // the last sample
	waited     bool          // requests waited at it
}

const (
	rateMemory = 10.0 // seconds
	ratePrior  = 1.0  // server seconds that count as served at the rate expected, before anything is known
	leastRate  = 0.1  // it must let enough wait to be proved wrong
)

// sample notes that requests wait and none may go.
func (r *serviceRate) sample(s *Servers) {
	if r.waited {
		passed := (s.Now - r.since).Seconds()
		keep := math.Exp(-passed / rateMemory)
		r.work = keep*r.work + r.went
		r.time *= keep
		for range s.eachWorkAhead {
			r.time += passed
		}
	}
	r.went, r.since, r.waited = 0, s.Now, true
}

// reset notes that no request waits.
func (r *serviceRate) reset() { r.went, r.waited = 0, false }

// ratio is the rate, where so much is expected before anything is known.
func (r *serviceRate) ratio(expected float64) float64 {
	return max((r.work+ratePrior*expected)/(r.time+ratePrior), leastRate)
}
