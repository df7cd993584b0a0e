package curve

import (
	"math"
	"time"
)

// leastMetered is how many requests of an engine have to have ended before its clock is read: single ones end
// between its reading and our hearing of their answers.
const leastMetered = 8

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

// EndMetered notes the end of a work of so many requests of the engine of which nothing but the engine's clock says
// what it took: that of an answer that came whole.
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
// It says something only where all that has ended were our works.
func (l *Learned) ReadMeter(requests, seconds float64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.metered
	ended, took := requests-m.requests, seconds-m.seconds
	whole := m.read && m.works > 0 && ended >= 0 && took >= 0
	if whole && ended < leastMetered && m.awaited < leastMetered {
		return // more have to come
	}
	if whole && math.Abs(ended-float64(m.awaited)) <= 1+ended/10 {
		l.boundLocked(&m.limit, took*float64(m.awaited)/ended, m.predicted, m.works, now)
	}
	*m = meter{read: true, requests: requests, seconds: seconds, limit: m.limit}
}

// boundLocked enters works of which it is known what they took at the most. That counts where the server is believed
// to be slower than it allows.
func (l *Learned) boundLocked(b *bound, observed, predicted float64, works int, now time.Time) {
	kept := math.Pow(speedKeep, float64(works))
	b.observed, b.predicted = kept*b.observed+observed, kept*b.predicted+predicted
	b.samples = min(knownAfter, b.samples+works)
	if b.samples < knownAfter || b.predicted <= 0 || b.observed >= l.factorLocked()*b.predicted {
		return
	}
	l.countLocked()
	average := b.predicted * (1 - speedKeep) * float64(works)
	l.addOwnLocked(l.followLocked(step{b.observed / b.predicted * average, average, works, l.silentLocked(now)}))
	l.countSamplesLocked(uint64(works), now)
}
