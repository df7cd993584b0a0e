package pd

import (
	"math"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// Links knows what transfers cost. A class of distance comes first, learned from all
// its pairs; then how much slower than their class single servers have been, and
// single pairs beyond what their servers explain (a sick link, a silent fallback to
// TCP); last what is under way: a transfer that should have ended long ago says so now,
// not when it ends. Safe for concurrent use.
type Links struct {
	classes [distances]*pools.Learned

	mu              sync.Mutex // guards the rest
	prefill, decode map[string]*slowness
	pairs           map[pairID]*slowness
	slow            map[pairID]*slowness // those of the pairs that count
	moving          map[uint64]movement
	seq             uint64
	tables          []linkTable // of the latest fleets
}

type pairID struct{ prefill, decode string }

// movement is a transfer under way.
type movement struct {
	pairID
	expected float64 // seconds, by class
	since    time.Time
}

// slowness is the logarithm of how much longer than their class transfers took.
type slowness struct {
	log     float64
	samples int
	seen    time.Time
}

// How slowness is learned, and when it counts.
const (
	slowGain      = 0.15            // share of a residual that it takes over
	serverGain    = 0.05            // the same of a server that was slower than believed: see learnServer
	slowClip      = 1.0             // largest residual that counts, a logarithm
	slowSamples   = 4               // before it counts
	slowDiffers   = 0.45            // logarithm below which it is chance and contention
	slowHalf      = 2 * time.Minute // in which it fades by half without samples: what healed is tried again
	slowFault     = 2.0             // logarithm that a failed transfer adds: about seven times as slow
	overdueLeast  = 1.0             // seconds, and
	overdueFactor = 4.0             // times the expected time, before a transfer under way says anything
	maxSlow       = 1 << 16         // pairs, and servers of each role, that are kept; beyond it the stale go
	minLinkTime   = 1e-6            // seconds that a transfer takes at least
)

// NewLinks returns links that believe the prior.
func NewLinks(prior LinkPrior) *Links {
	l := &Links{
		prefill: make(map[string]*slowness), decode: make(map[string]*slowness),
		pairs: make(map[pairID]*slowness), slow: make(map[pairID]*slowness), moving: make(map[uint64]movement),
	}
	anchors := []pools.Features{linkFeatures(0), linkFeatures(1e8), linkFeatures(4e9)}
	for i, p := range prior {
		l.classes[i] = pools.NewLearned(pools.Curve{p.Latency.Seconds(), 1e9 / p.BytesPerSecond, 0}, anchors)
	}
	return l
}

// linkFeatures are one and the gigabytes moved.
func linkFeatures(bytes float64) pools.Features { return pools.Features{1, bytes / 1e9, 0} }

// Between returns what a transfer between two places is believed to cost: seconds, and
// seconds per byte.
func (l *Links) Between(a, b *Place, now time.Time) (latency, perByte float64) {
	curve := l.classes[DistanceOf(a, b)].Curve()
	return curve[0], max(curve[1], 1e-6) / 1e9
}

// Begin notes a transfer that is under way from now on, and returns what ends it.
func (l *Links) Begin(p, d *Candidate, bytes float64, now time.Time) (end func()) {
	expected := l.classes[DistanceOf(&p.Place, &d.Place)].Curve().Seconds(linkFeatures(bytes))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	id := l.seq
	l.moving[id] = movement{pairID{p.ID, d.ID}, expected, now}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.moving, id)
	}
}

// Observe teaches the links one transfer between two servers: the time from decode's
// dispatch to its first event, less what the server itself needed. Whoever is known to
// be slow explains it for the others.
func (l *Links) Observe(p, d *Candidate, bytes float64, took time.Duration, now time.Time) {
	seconds := max(took.Seconds(), minLinkTime)
	class := l.classes[DistanceOf(&p.Place, &d.Place)]
	x := linkFeatures(bytes)
	residual := math.Log(seconds / max(class.Curve().Seconds(x), minLinkTime))
	l.mu.Lock()
	defer l.mu.Unlock()
	prefill, decode := entry(l.prefill, p.ID, now), entry(l.decode, d.ID, now)
	byPrefill, byDecode := prefill.differs(now), decode.differs(now)
	prefill.learnServer(residual-byDecode, now)
	decode.learnServer(residual-byPrefill, now)
	id, explained := pairID{p.ID, d.ID}, max(byPrefill, byDecode)
	pair := entry(l.pairs, id, now)
	pair.learn(residual-explained, slowGain, now)
	l.noteLocked(id, pair, now)
	explained = max(explained, pair.differs(now))
	class.Served(x, time.Duration(seconds*math.Exp(-explained)*float64(time.Second)), now)
}

// Fault charges a pair with a transfer that failed: what crosses a link is not held
// against either server. It counts at once.
func (l *Links) Fault(prefill, decode string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := pairID{prefill, decode}
	pair := entry(l.pairs, id, now)
	pair.log = min(pair.faded(now)+slowFault, 2*slowFault)
	pair.samples = max(pair.samples, slowSamples)
	pair.seen = now
	l.noteLocked(id, pair, now)
	clear(l.tables)
	l.tables = l.tables[:0]
}

// noteLocked keeps a pair among those that count, or not.
func (l *Links) noteLocked(id pairID, pair *slowness, now time.Time) {
	if pair.differs(now) > 0 {
		l.slow[id] = pair
		return
	}
	delete(l.slow, id)
}

// learnServer believes good news three times as fast as bad: a slow server is slow to
// all, one with a single slow pair, or that often shares an uplink, is not.
func (s *slowness) learnServer(residual float64, now time.Time) {
	gain := slowGain
	if residual > s.faded(now) {
		gain = serverGain
	}
	s.learn(residual, gain, now)
}

func (s *slowness) learn(residual, gain float64, now time.Time) {
	s.log = s.faded(now)
	s.log += gain * min(max(residual-s.log, -slowClip), slowClip)
	s.samples++
	s.seen = now
}

// faded is the logarithm at a time.
func (s *slowness) faded(now time.Time) float64 {
	if s.log == 0 {
		return 0
	}
	return s.log * math.Exp2(-float64(now.Sub(s.seen))/float64(slowHalf))
}

// differs is the logarithm if it counts, 0 if not.
func (s *slowness) differs(now time.Time) float64 {
	if s == nil || s.samples < slowSamples {
		return 0
	}
	if f := s.faded(now); f > slowDiffers {
		return f
	}
	return 0
}

// entry returns what is kept under a key, and makes room where it is new: what had no
// sample for long goes, all of it if need be. It is learned again.
func entry[K comparable](kept map[K]*slowness, key K, now time.Time) *slowness {
	s := kept[key]
	if s != nil {
		return s
	}
	if len(kept) >= maxSlow {
		for k, old := range kept {
			if now.Sub(old.seen) > 5*slowHalf {
				delete(kept, k)
			}
		}
	}
	if len(kept) >= maxSlow {
		clear(kept)
	}
	s = &slowness{seen: now}
	kept[key] = s
	return s
}
