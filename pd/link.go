package pd

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// Place is where a server stands; empty labels are unknown.
type Place struct {
	Host, Rack, Zone string
}

// Link is what moving KV between two servers costs: Latency once, then the bytes
// at BytesPerSecond.
type Link struct {
	Latency        time.Duration
	BytesPerSecond float64
}

// Time is how long a transfer of bytes takes.
func (l Link) Time(bytes float64) time.Duration {
	return l.Latency + time.Duration(bytes/l.BytesPerSecond*float64(time.Second))
}

// Distance is a class of links.
type Distance uint8

// The classes, nearest first.
const (
	SameHost Distance = iota
	SameRack
	SameZone
	Far
	distances
)

// DistanceOf is the closest label that both places know and share. Places without
// any common label are taken to be in one zone: a deployment that says nothing of
// its topology usually has one.
func DistanceOf(a, b *Place) Distance {
	same := func(x, y string) bool { return x != "" && x == y }
	switch {
	case same(a.Host, b.Host):
		return SameHost
	case same(a.Rack, b.Rack):
		return SameRack
	case a.Zone != "" && b.Zone != "" && a.Zone != b.Zone:
		return Far
	}
	return SameZone
}

// LinkPrior is what is assumed of each class until transfers have shown it.
type LinkPrior [distances]Link

// DefaultLinks assumes NVLink within a host, 400 Gb/s within a rack, 100 Gb/s
// within a zone, and 10 Gb/s beyond.
func DefaultLinks() LinkPrior {
	return LinkPrior{
		SameHost: {Latency: 50 * time.Microsecond, BytesPerSecond: 200e9},
		SameRack: {Latency: 200 * time.Microsecond, BytesPerSecond: 50e9},
		SameZone: {Latency: 500 * time.Microsecond, BytesPerSecond: 12.5e9},
		Far:      {Latency: 2 * time.Millisecond, BytesPerSecond: 1.25e9},
	}
}

// Validate reports what is wrong with the prior, nil if nothing.
func (p LinkPrior) Validate() error {
	for _, l := range p {
		if !(l.BytesPerSecond > 0) || l.Latency < 0 {
			return errors.New("link bandwidths must be positive")
		}
	}
	return nil
}

// How a pair's own factor is learned, and when it counts.
const (
	pairGain    = 0.15             // share of a residual that a pair's factor takes over
	pairClip    = 1.0              // largest residual that counts, in natural logarithms
	pairSamples = 6                // samples before a pair's factor counts
	pairDiffers = 0.4              // logarithm beyond which a pair differs from its class
	pairFade    = 2 * time.Minute  // half-life of a factor without samples: a healed link is tried again
	pairFault   = 2.0              // logarithm that a failed transfer adds: about seven times as slow
	maxPairs    = 1 << 16          // factors kept; beyond it the stalest half goes
	minLinkTime = time.Microsecond // what a transfer takes at least
)

// Links knows what transfers cost: a class of distance first, learned from all its
// pairs, and a factor for single pairs where the samples say that they differ (a
// sick link, a silent fallback to TCP). Safe for concurrent use; readers take no
// lock.
type Links struct {
	classes [distances]*pools.Learned

	mu    sync.Mutex // guards pairs, and the writing of odd
	pairs map[pairID]*pairFactor
	odd   atomic.Pointer[map[pairID]pairFactor] // those that differ; never changed in place
}

type pairID struct{ prefill, decode string }

type pairFactor struct {
	log     float64 // of how much longer than its class
	samples int
	seen    time.Time
}

// differs says whether the factor is believed at all.
func (f *pairFactor) differs() bool {
	return f.samples >= pairSamples && math.Abs(f.log) >= pairDiffers
}

// faded is the logarithm at a time.
func (f *pairFactor) faded(now time.Time) float64 {
	return f.log * math.Exp2(-float64(now.Sub(f.seen))/float64(pairFade))
}

// NewLinks returns links that believe the prior.
func NewLinks(prior LinkPrior) *Links {
	l := &Links{pairs: make(map[pairID]*pairFactor)}
	l.odd.Store(&map[pairID]pairFactor{})
	anchors := []pools.Features{linkFeatures(0), linkFeatures(1e8), linkFeatures(4e9)}
	for i, p := range prior {
		l.classes[i] = pools.NewLearned(pools.Curve{p.Latency.Seconds(), 1e9 / p.BytesPerSecond, 0}, anchors)
	}
	return l
}

// linkFeatures are one and the gigabytes moved.
func linkFeatures(bytes float64) pools.Features { return pools.Features{1, bytes / 1e9, 0} }

// LinkView is the links as one choice sees them.
type LinkView struct {
	classes [distances]Link
	odd     map[pairID]pairFactor
	now     time.Time
}

// View fixes the links for one choice.
func (l *Links) View(now time.Time) LinkView {
	v := LinkView{odd: *l.odd.Load(), now: now}
	for i, c := range l.classes {
		curve := c.At(now)
		v.classes[i] = Link{
			Latency:        time.Duration(curve[0] * float64(time.Second)),
			BytesPerSecond: 1e9 / max(curve[1], 1e-6),
		}
	}
	return v
}

// factor returns how much longer the transfers of a pair take than those of its
// class, false where it does not differ.
func (v *LinkView) factor(prefill, decode string) (float64, bool) {
	if len(v.odd) == 0 {
		return 1, false
	}
	f, odd := v.odd[pairID{prefill, decode}]
	if !odd {
		return 1, false
	}
	return math.Exp(f.faded(v.now)), true
}

// Observe teaches the links one transfer between two servers: the time from
// decode's dispatch to its first event, less what the server itself needed.
func (l *Links) Observe(p, d *Candidate, bytes float64, took time.Duration, now time.Time) {
	took = max(took, minLinkTime)
	class := l.classes[DistanceOf(&p.Place, &d.Place)]
	expected := class.At(now).Seconds(linkFeatures(bytes))
	residual := math.Log(took.Seconds() / max(expected, minLinkTime.Seconds()))
	if !l.learn(pairID{p.ID, d.ID}, residual, now) {
		class.Observe(linkFeatures(bytes), took, now)
	}
}

// learn moves a pair's factor and reports whether the pair differs: it then says
// nothing of its class.
func (l *Links) learn(id pairID, residual float64, now time.Time) (differs bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.pairLocked(id, now)
	was := f.differs()
	f.log = f.faded(now)
	f.log += pairGain * min(max(residual-f.log, -pairClip), pairClip)
	f.samples++
	f.seen = now
	if differs = f.differs(); was || differs {
		l.publishLocked()
	}
	return differs
}

// Fault charges a pair with a transfer that failed: what crosses a link is not
// held against either server. It counts at once.
func (l *Links) Fault(prefill, decode string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.pairLocked(pairID{prefill, decode}, now)
	f.log = min(f.faded(now)+pairFault, 2*pairFault)
	f.samples = max(f.samples, pairSamples)
	f.seen = now
	l.publishLocked()
}

// publishLocked gives readers the pairs that differ.
func (l *Links) publishLocked() {
	odd := make(map[pairID]pairFactor)
	for id, f := range l.pairs {
		if f.differs() {
			odd[id] = *f
		}
	}
	l.odd.Store(&odd)
}

// pairLocked returns the factor of a pair, a new one if there is none.
func (l *Links) pairLocked(id pairID, now time.Time) *pairFactor {
	f := l.pairs[id]
	if f == nil {
		if len(l.pairs) >= maxPairs {
			l.forgetLocked(now)
		}
		f = &pairFactor{seen: now}
		l.pairs[id] = f
	}
	return f
}

// forgetLocked drops factors that have had no sample for long, all of them if need
// be: they are learned again.
func (l *Links) forgetLocked(now time.Time) {
	for id, f := range l.pairs {
		if now.Sub(f.seen) > 5*pairFade {
			delete(l.pairs, id)
		}
	}
	if len(l.pairs) >= maxPairs {
		clear(l.pairs)
	}
}
