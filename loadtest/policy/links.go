package policy

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// Links is what a gateway believes of the time that KV takes from one server to
// another: a class of distance first, learned from all transfers, then how much
// slower than its class single servers and pairs have been, and last what is still
// under way: a transfer that should have ended long ago says so now, not when it
// ends. Times are since any fixed origin.
type Links struct {
	prefills, decodes int
	class             []int       // of each pair, by prefill*decodes+decode
	classes           []linkClass // by class
	prefill, decode   []slowness  // of single servers
	pair              []slowness
	moving            []moving

	overdue  []moving // scratch of Fill
	partners []uint64 // scratch of Fill: servers of the other role with overdue transfers, prefill first
}

// linkClass is the seconds of a transfer: latency + bytes x perByte.
type linkClass struct {
	latency float64
	perByte float64
	scale   float64 // learned: multiplies both
}

// slowness is the logarithm of how much longer than the class transfers took.
type slowness struct {
	log     float64
	samples int
	seen    time.Duration
}

type moving struct {
	id       int64
	pair     int
	expected float64 // seconds, by class
	since    time.Duration
}

const (
	classGain     = 0.02
	slowGain      = 0.15
	slowClip      = 1.0             // largest residual that counts, a logarithm
	slowSamples   = 4               // before a slowness counts
	slowDiffers   = 0.45            // logarithm below which it is chance and contention
	slowHalf      = 2 * time.Minute // in which a slowness without samples fades by half
	overdueLeast  = 1.0             // seconds, and
	overdueFactor = 4.0             // times the expected time, before a transfer under way says anything
)

// NewLinks returns links with a class for each pair and, for each class, latency
// in seconds and bytes per second to begin with.
func NewLinks(prefills, decodes int, class []int, latency, bytesPerSecond []float64) *Links {
	l := &Links{
		prefills: prefills, decodes: decodes, class: class,
		prefill: make([]slowness, prefills), decode: make([]slowness, decodes), pair: make([]slowness, prefills*decodes),
		partners: make([]uint64, prefills+decodes),
	}
	for i := range latency {
		l.classes = append(l.classes, linkClass{latency: latency[i], perByte: 1 / bytesPerSecond[i], scale: 1})
	}
	return l
}

func (l *Links) base(pair int, bytes float64) float64 {
	c := &l.classes[l.class[pair]]
	return c.latency + bytes*c.perByte
}

// Begin notes a transfer that is under way from now on.
func (l *Links) Begin(id int64, prefill, decode int, bytes float64, now time.Duration) {
	pair := prefill*l.decodes + decode
	l.moving = append(l.moving, moving{id: id, pair: pair, expected: l.base(pair, bytes) * l.classes[l.class[pair]].scale, since: now})
}

// End learns from a transfer that took seconds. Without Begin it only learns.
func (l *Links) End(id int64, prefill, decode int, bytes, seconds float64, now time.Duration) {
	l.moving = slices.DeleteFunc(l.moving, func(m moving) bool { return m.id == id })
	pair := prefill*l.decodes + decode
	c := &l.classes[l.class[pair]]
	base := l.base(pair, bytes)
	if base <= 0 {
		return
	}
	residual := math.Log(max(seconds, 1e-4)/base) - math.Log(c.scale)
	// Whoever is known to be slow explains it for the others.
	p, d := &l.prefill[prefill], &l.decode[decode]
	byPrefill, byDecode := math.Log(p.factor(now)), math.Log(d.factor(now))
	p.learn(residual-byDecode, now)
	d.learn(residual-byPrefill, now)
	l.pair[pair].learn(residual-max(byPrefill, byDecode), now)
	c.scale *= math.Exp(classGain * min(max(residual-max(byPrefill, byDecode), -slowClip), slowClip))
}

func (s *slowness) learn(residual float64, now time.Duration) {
	s.log = s.faded(now)
	s.log += slowGain * min(max(residual-s.log, -slowClip), slowClip)
	s.samples++
	s.seen = now
}

func (s *slowness) faded(now time.Duration) float64 {
	return s.log * math.Exp2(-float64(now-s.seen)/float64(slowHalf))
}

func (s *slowness) factor(now time.Duration) float64 {
	if f := s.faded(now); s.samples >= slowSamples && f > slowDiffers {
		return math.Exp(f)
	}
	return 1
}

// factor is how much slower than its class a pair has been.
func (l *Links) factor(pair int, now time.Duration) float64 {
	p, d := pair/l.decodes, pair%l.decodes
	return max(l.prefill[p].factor(now), l.decode[d].factor(now), l.pair[pair].factor(now))
}

// Fill writes what is believed now into a table. A transfer that is overdue makes
// one of its servers slow already: the one that has overdue transfers with more
// others.
func (l *Links) Fill(t *LinkTable, now time.Duration) {
	for pair := range l.class {
		c := &l.classes[l.class[pair]]
		f := c.scale * l.factor(pair, now)
		t.Latency[pair], t.SecondsPerByte[pair] = f*c.latency, f*c.perByte
	}
	l.overdue = l.overdue[:0]
	clear(l.partners)
	for _, m := range l.moving {
		if passed := (now - m.since).Seconds(); passed > overdueLeast+overdueFactor*m.expected {
			l.overdue = append(l.overdue, m)
			l.partners[m.pair/l.decodes] |= 1 << (m.pair % l.decodes)
			l.partners[l.prefills+m.pair%l.decodes] |= 1 << (m.pair / l.decodes)
		}
	}
	for _, m := range l.overdue {
		f := (now - m.since).Seconds() / max(m.expected, 1e-3)
		p, d := m.pair/l.decodes, m.pair%l.decodes
		if bits.OnesCount64(l.partners[p]) >= bits.OnesCount64(l.partners[l.prefills+d]) {
			for k := range l.decodes {
				l.atLeast(t, p*l.decodes+k, f)
			}
			continue
		}
		for k := range l.prefills {
			l.atLeast(t, k*l.decodes+d, f)
		}
	}
}

func (l *Links) atLeast(t *LinkTable, pair int, factor float64) {
	c := &l.classes[l.class[pair]]
	t.SecondsPerByte[pair] = max(t.SecondsPerByte[pair], c.scale*factor*c.perByte)
}
