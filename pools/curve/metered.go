package curve

import (
	"math"
	"time"
)

// leastMetered is how many works an engine's clock has to have counted before it is believed: it is exact, but one
// work alone may have been computed while a beginning that all share was not yet there.
const leastMetered = 2

// exactBelow is up to how many requests all of them have to be ours; of more one in so many may be others', or counted
// later than its answer is heard of.
const exactBelow = 10

// meter compares what works were believed to take with what the engine's own clock says that its requests took.
type meter struct {
	read     bool
	requests float64 // of the last reading, since the engine's start
	seconds  float64 // likewise

	works     int     // that have ended since
	awaited   int     // requests of the engine that they were
	predicted float64 // seconds, by the prior
	limit     bound   // what they took at the most
}

// EndMetered notes the end of so many requests of the engine, and the work that they were: zero where they computed no
// prompt.
func (l *Learned) EndMetered(x Features, requests int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.metered
	m.works, m.awaited, m.predicted = m.works+1, m.awaited+requests, m.predicted+l.prior.Seconds(x)
}

// ReadMeter reads the engine's clock: how many requests have ended since its start, and the seconds from the
// first step of each to its first token, in sum. In that time the engine computed others' prompts too, so that it
// bounds from above what a work takes. Served, the time between two answers, is no such bound where the gateway
// sends no faster than it believes the server to be.
//
// It says something only where all that has ended was ours: with several gateways each counts its own alone.
func (l *Learned) ReadMeter(requests, seconds float64, now time.Time) {
	l.lockToLearn()
	defer l.mu.Unlock()
	m := &l.metered
	ended, took := requests-m.requests, seconds-m.seconds
	whole := m.read && m.works > 0 && ended >= 0 && took >= 0
	if whole && (ended == 0 || ended < float64(m.awaited) && ended < exactBelow) {
		return // what is counted later than its answer is heard of
	}
	if whole && math.Abs(ended-float64(m.awaited)) <= ended/exactBelow {
		took *= float64(m.awaited) / ended
		if l.boundsLocked(&m.limit, leastMetered, took, m.predicted, m.works) {
			l.enterBoundLocked(step{observed: took, predicted: m.predicted, samples: m.works}, now)
		}
	}
	*m = meter{read: true, requests: requests, seconds: seconds, limit: m.limit}
}
