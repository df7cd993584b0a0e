package pools

import (
	"sync/atomic"
	"time"
)

const (
	// handoffsMissed is how many prefills in a row may end without a hand-off. One is
	// normal, where the answer is over with its first token.
	handoffsMissed = 5
	// handoffPause is how long prefill is not asked for hand-offs then.
	handoffPause = 30 * time.Second
)

// handoffs follows whether a prefill server hands over what it computes. One that does
// not (its KV connector is not set up) answers well and fast, and all of its work is done
// again by decode.
type handoffs struct {
	missed atomic.Int64              // in a row
	until  atomic.Pointer[time.Time] // it is left out; nil: it is not
}

// HandedOver notes a prefill with a hand-off.
func (l *live) HandedOver() {
	l.handoffs.missed.Store(0)
	l.handoffs.until.Store(nil)
}

// NoHandoff notes a prefill without one, and reports whether the server is left out from
// now on because of it. After the pause each further one leaves it out again.
func (l *live) NoHandoff(now time.Time) (out bool) {
	if l.handoffs.missed.Add(1) < handoffsMissed || l.HandsNothingOver(now) {
		return false
	}
	until := now.Add(handoffPause)
	l.handoffs.until.Store(&until)
	return true
}

// HandsNothingOver reports whether the server is left out as the prefill of a pair.
func (l *live) HandsNothingOver(now time.Time) bool {
	until := l.handoffs.until.Load()
	return until != nil && now.Before(*until)
}
