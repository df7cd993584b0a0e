package cost

import (
	"math"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Links knows what transfers cost. What is slow is blamed from the small to the large,
// and only as far as transfers agree:
//
//   - a pair, after a few slow transfers (a sick link, a silent fallback to TCP)
//   - one of its servers, when most of the partners that it moved KV with lately agree
//   - the class of distance, when most servers on both sides do
//
// What the larger explains is not held against the smaller. Last is what is under way: a
// transfer that should have ended long ago says so now, not when it ends. Safe for
// concurrent use.
type Links struct {
	classes [distances]*curve.Learned

	mu              sync.Mutex // guards the rest
	linkEnds        [distances]linkEnds
	prefill, decode map[string]*serverSlowness
	pairs           map[pairID]*pairSlowness
	slow            map[pairID]*pairSlowness // those of the pairs that count
	moving          map[*Transfer]struct{}
	began           time.Time          // zero: nothing was expected yet
	sending         map[string]linkUse // by prefill server; those that send nothing and have nothing to send are not there
	receiving       map[string]linkUse // by decode server, likewise
	tables          []linkTable        // of the latest fleets
}

type pairID struct{ prefill, decode string }

// linkEnds are the servers at both ends of a class's links that moved KV last, with how
// much longer than the class is believed to take their transfers took.
type linkEnds struct{ prefill, decode peerSamples }

// majority is what most servers on both sides say at least, false while there are not
// several on both.
func (s *linkEnds) majority(now time.Time) (log float64, several bool) {
	byPrefill, prefills := s.prefill.majority(now)
	byDecode, decodes := s.decode.majority(now)
	return max(0, min(byPrefill, byDecode)), prefills && decodes
}

const (
	overdueLeast  = 1.0     // seconds, and
	overdueFactor = 4.0     // times the expected time, before a transfer under way says anything
	maxSlow       = 1 << 16 // pairs, and servers of each role, that are kept; beyond it the stale go
	minLinkTime   = 1e-6    // seconds that a transfer takes at least
	minShare      = 1e-3    // of its time that a transfer beside others would take alone, at least
)

// NewLinks returns links that believe the prior.
func NewLinks(prior LinkPrior) *Links {
	l := &Links{
		prefill: make(map[string]*serverSlowness), decode: make(map[string]*serverSlowness),
		pairs: make(map[pairID]*pairSlowness), slow: make(map[pairID]*pairSlowness), moving: make(map[*Transfer]struct{}),
		sending: make(map[string]linkUse), receiving: make(map[string]linkUse),
	}
	anchors := []curve.Features{linkFeatures(0), linkFeatures(1e8), linkFeatures(4e9)}
	for i, p := range prior {
		l.classes[i] = curve.NewLearned(curve.Curve{p.Latency.Seconds(), 1e9 / p.BytesPerSecond, 0}, anchors, linkForgetting)
	}
	return l
}

// sinceLocked is a time in seconds since the first one that was asked for, which is began.
func (l *Links) sinceLocked(now time.Time) float64 {
	if l.began.IsZero() {
		l.began = now
	}
	return now.Sub(l.began).Seconds()
}

// linkForgetting is the time without a transfer in which what the links of a distance have
// shown loses half its weight.
const linkForgetting = time.Minute

// linkFeatures are one and the gigabytes moved.
func linkFeatures(bytes float64) curve.Features { return curve.Features{1, bytes / 1e9, 0} }

// speed is what a transfer is believed to cost: seconds, and seconds per byte.
type speed struct{ latency, perByte float64 }

func (l *Links) speed(d Distance) speed {
	curve := l.classes[d].Curve()
	return speed{curve[0], max(curve[1], 1e-6) / 1e9}
}

// speeds are those of all distances.
func (l *Links) speeds() (all [distances]speed) {
	for d := range all {
		all[d] = l.speed(Distance(d))
	}
	return all
}

// Estimate returns what a transfer between two places is believed to cost: seconds, and
// seconds per byte.
func (l *Links) Estimate(a, b *Topology, now time.Time) (latency, perByte float64) {
	between := l.speed(DistanceOf(a, b))
	return between.latency, between.perByte
}

// Observe teaches the links one transfer between two servers, which took a time that is
// known within some slack: of all that it may have been it took what is nearest to what
// is believed, and where that is the belief itself there is nothing to learn.
func (l *Links) Observe(p, d LinkEnd, bytes float64, took, slack time.Duration, now time.Time) {
	l.observe(&p, &d, bytes, took, slack, 1, now)
}

// observe is Observe of a transfer that would have taken alone no less than a share of its time,
// 0..1. Where that explains how long it took, its servers are not blamed for it. Where it does not they
// are for all of it: others will meet the same there. And so does the class learn how long transfers
// take, as they come.
func (l *Links) observe(p, d *LinkEnd, bytes float64, took, slack time.Duration, share float64, now time.Time) {
	distance := DistanceOf(&p.Topology, &d.Topology)
	class, x := l.classes[distance], linkFeatures(bytes)
	expected := max(class.Curve().Seconds(x), minLinkTime)
	logOf := func(d time.Duration) float64 { return math.Log(max(d.Seconds(), minLinkTime) / expected) }
	id := pairID{p.ID, d.ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	believed := l.differsLocked(id, now)
	least, most := logOf(took-slack), logOf(took+slack)
	if slack > 0 && least <= believed && believed <= most {
		return
	}
	residual := min(max(believed, least), most)
	alone := residual
	if least := residual + math.Log(max(share, minShare)); least <= slowDiffers { // sharing explains it
		alone = min(max(believed, least), residual)
	}
	beyond, meant := l.attributeLocked(id, distance, alone, 1, now)
	if meant {
		l.pairs[id].count(alone)
		seconds := expected * math.Exp(residual)
		class.ObserveServed(x, time.Duration(seconds*math.Exp(-beyond)*float64(time.Second)), now)
	}
}

// attributeLocked finds out whose fault it is that transfers took longer than their class by
// a residual, a logarithm. It returns whether the class is meant at all, and the part that
// says nothing of it.
func (l *Links) attributeLocked(id pairID, distance Distance, residual float64, transfers int, now time.Time) (beyond float64, meant bool) {
	pair := entry(l.pairs, id, now, (*pairSlowness).stale)
	pair.distance = distance
	defer l.updateSlowLocked(id, pair, now)
	if pair.samples == 0 && transfers == 1 && residual > slowDiffers { // the engines meet for the first time
		pair.learn(residual, transfers, now)
		return 0, false
	}
	ends := &l.linkEnds[distance]
	ends.prefill.observe(id.prefill, residual, now)
	ends.decode.observe(id.decode, residual, now)
	all, several := ends.majority(now)
	rest := residual
	if several && all > slowDiffers {
		rest -= all // the class is about to learn it
	}

	prefill, decode := entry(l.prefill, id.prefill, now, (*serverSlowness).stale), entry(l.decode, id.decode, now, (*serverSlowness).stale)
	byPrefill, byDecode := prefill.differs(now), decode.differs(now)
	prefill.observe(id.decode, rest-byDecode, transfers, now)
	decode.observe(id.prefill, rest-byPrefill, transfers, now)
	pair.learn(rest-max(byPrefill, byDecode), transfers, now)
	if rest < residual {
		return max(0, rest), true
	}
	beyond = max(byPrefill, byDecode, pair.differs(now))
	if several {
		beyond = max(beyond, residual-all-slowDiffers)
	}
	return beyond, true
}

// Blame charges a pair with a transfer that failed: what crosses a link is not held
// against either server. It counts at once.
func (l *Links) Blame(prefill, decode string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := pairID{prefill, decode}
	pair := entry(l.pairs, id, now, (*pairSlowness).stale)
	pair.blame(now)
	l.updateSlowLocked(id, pair, now)
	l.forgetTablesLocked()
}

// Clear takes the charges since a time off the links of a server: its own failure has
// been proved, and explains them.
func (l *Links) Clear(server string, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, pair := range l.slow {
		if (id.prefill == server || id.decode == server) && pair.clear(since) {
			l.updateSlowLocked(id, pair, pair.seen)
		}
	}
	l.forgetTablesLocked()
}

func (l *Links) forgetTablesLocked() {
	clear(l.tables)
	l.tables = l.tables[:0]
}

// differsLocked is by how much a pair is believed to be slower than its class, as a logarithm.
func (l *Links) differsLocked(id pairID, now time.Time) float64 {
	return max(l.prefill[id.prefill].differs(now), l.decode[id.decode].differs(now), l.slow[id].differs(now))
}

// updateSlowLocked keeps a pair among those that count, or not.
func (l *Links) updateSlowLocked(id pairID, pair *pairSlowness, now time.Time) {
	if pair.differs(now) > 0 {
		l.slow[id] = pair
		return
	}
	delete(l.slow, id)
}

// stale reports whether there was no sample for so long that it may be forgotten.
func (s *slowness) stale(now time.Time) bool { return now.Sub(s.seen) > slowStale }

// entry returns what is kept under a key, and makes room where it is new: what is stale
// goes, all of it if need be. It is learned again.
func entry[K comparable, V any](kept map[K]*V, key K, now time.Time, stale func(*V, time.Time) bool) *V {
	v := kept[key]
	if v != nil {
		return v
	}
	if len(kept) >= maxSlow {
		for k, old := range kept {
			if stale(old, now) {
				delete(kept, k)
			}
		}
	}
	if len(kept) >= maxSlow {
		clear(kept)
	}
	v = new(V)
	kept[key] = v
	return v
}
