package cost

import (
	"math"
	"slices"
	"time"
)

// slowness is the logarithm of how much longer than expected transfers took.
type slowness struct {
	log     float64
	samples int
	seen    time.Time
}

// How slowness is learned, and when it counts.
const (
	slowGain    = 0.15            // share of a residual that it takes over
	slowClip    = 1.0             // largest residual that counts, a logarithm
	slowSamples = 4               // before it counts
	mostSlow    = 4.0             // largest residual that is reported to others: fifty times
	slowDiffers = 0.45            // logarithm below which it is chance and contention
	slowHalf    = 2 * time.Minute // in which it fades by half without samples: what healed is tried again
	slowStale   = 5 * slowHalf    // without samples for so long it may be forgotten
	slowFault   = 2.0             // logarithm that a failed transfer adds: about seven times as slow
)

// learn takes in a number of transfers that took so much longer on the mean.
func (s *slowness) learn(residual float64, transfers int, now time.Time) {
	s.log = s.decayed(now)
	gain := 1 - math.Pow(1-slowGain, float64(transfers))
	s.log += gain * min(max(residual-s.log, -slowClip), slowClip)
	s.samples += transfers
	s.seen = now
}

// decayed is the logarithm at a time.
func (s *slowness) decayed(now time.Time) float64 { return decay(s.log, now.Sub(s.seen)) }

func decay(log float64, age time.Duration) float64 {
	if log == 0 {
		return 0
	}
	return log * math.Exp2(-float64(age)/float64(slowHalf))
}

// differs is the logarithm if it counts, 0 if not.
func (s *slowness) differs(now time.Time) float64 {
	if s.samples < slowSamples {
		return 0
	}
	if f := s.decayed(now); f > slowDiffers {
		return f
	}
	return 0
}

// pairSlowness is what is believed of one pair, beyond what its servers explain.
type pairSlowness struct {
	slowness
	distance Distance
	// Of the transfers that were seen here, for other replicas: how many, and the sum of
	// the logarithms by which they took longer than their class.
	transfers uint64
	slower    float64
	// Of failed transfers: the last, and what was believed before the first of them.
	blamedAt time.Time
	before   slowness
}

// count sums up one transfer for other replicas.
func (p *pairSlowness) count(residual float64) {
	p.transfers++
	p.slower += min(max(residual, -mostSlow), mostSlow)
}

// differs is the logarithm if it counts, 0 if not: not for a pair that is not known.
func (p *pairSlowness) differs(now time.Time) float64 {
	if p == nil {
		return 0
	}
	return p.slowness.differs(now)
}

// blame counts a transfer that failed, at once.
func (p *pairSlowness) blame(now time.Time) {
	if now.Sub(p.blamedAt) > slowHalf {
		p.before = p.slowness
	}
	p.blamedAt = now
	p.log = min(p.decayed(now)+slowFault, 2*slowFault)
	p.samples = max(p.samples, slowSamples)
	p.seen = now
}

// clear takes back the charges since a time, false if there are none.
func (p *pairSlowness) clear(since time.Time) bool {
	if p.blamedAt.IsZero() || p.blamedAt.Before(since) {
		return false
	}
	p.slowness, p.blamedAt = p.before, time.Time{}
	return true
}

// serverSlowness is what is believed of one server: what its partners agree on. The zero value is
// one that nothing is held against.
type serverSlowness struct {
	slowness
	partners peerSamples
}

// differs is the logarithm if it counts, 0 if not: not for one that is not known.
func (b *serverSlowness) differs(now time.Time) float64 {
	if b == nil {
		return 0
	}
	return b.slowness.differs(now)
}

// observe takes in how much longer than expected transfers with a partner took. What only
// one partner says may be its own fault or that of what lies between: of that only good
// news count.
func (b *serverSlowness) observe(partner string, residual float64, transfers int, now time.Time) {
	b.partners.observe(partner, residual, now)
	agreed, several := b.partners.majority(now)
	if !several {
		agreed = min(residual, b.decayed(now))
	}
	b.learn(agreed, transfers, now)
}

// peerSamples are the latest sample of each of the servers that moved KV last, the newest
// at the end.
type peerSamples []peerSample

type peerSample struct {
	server string
	log    float64
	at     time.Time
}

const maxPeerSamples = 8

// observe keeps the sample of a server.
func (p *peerSamples) observe(server string, log float64, now time.Time) {
	all := slices.DeleteFunc(*p, func(s peerSample) bool { return s.server == server })
	if len(all) == maxPeerSamples {
		all = slices.Delete(all, 0, 1)
	}
	*p = append(all, peerSample{server, log, now})
}

// majority is what more than half of them say at least, false while fewer than two are
// known. A sample decays with its age.
func (p peerSamples) majority(now time.Time) (log float64, several bool) {
	var logs [maxPeerSamples]float64
	n := 0
	for i := range p {
		if age := now.Sub(p[i].at); age < slowStale {
			logs[n] = decay(p[i].log, age)
			n++
		}
	}
	if n < 2 {
		return 0, false
	}
	slices.Sort(logs[:n])
	return logs[(n-1)/2], true
}
