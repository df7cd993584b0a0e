package cost

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// LinkRecord is what one replica has seen of the links, as others are told: sums, of
// which differences are news, and beliefs for those who know nothing yet.
type LinkRecord struct {
	Classes [distances]curve.Report `json:"classes"`
	Pairs   []pairRecord            `json:"pairs,omitempty"`
	Prefill map[string]blameRecord  `json:"prefill,omitempty"` // by server, those that are known
	Decode  map[string]blameRecord  `json:"decode,omitempty"`
}

// pairRecord is one pair.
type pairRecord struct {
	Prefill   string   `json:"p"`
	Decode    string   `json:"d"`
	Distance  Distance `json:"c"`
	Transfers uint64   `json:"n"`           // that this replica saw since it started
	Slower    float64  `json:"s,omitempty"` // sum of their residuals against the class
	blameRecord
}

// blameRecord is a belief of a pair or a server: how much slower, a logarithm.
type blameRecord struct {
	Log     float64 `json:"l,omitempty"`
	Samples int     `json:"k,omitempty"` // as far as they matter
}

// maxPairRecords are told of: those that moved something last.
const maxPairRecords = 1024

func (p *pairRecord) id() pairID { return pairID{p.Prefill, p.Decode} }

func recordOf(s slowness, now time.Time) blameRecord {
	return blameRecord{Log: math.Round(1e3*s.faded(now)) / 1e3, Samples: min(s.samples, 2*slowSamples)}
}

// Record returns what others are to be told.
func (l *Links) Record(now time.Time) LinkRecord {
	r := LinkRecord{Prefill: make(map[string]blameRecord), Decode: make(map[string]blameRecord)}
	for i, c := range l.classes {
		r.Classes[i] = c.Report(now)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	type seenPair struct {
		pairRecord
		seen time.Time
	}
	var pairs []seenPair
	for id, p := range l.pairs {
		if p.stale(now) {
			continue
		}
		believed := p.slowness
		if now.Sub(p.charged) < slowHalf {
			believed = p.before // failures are each replica's own to see, and to take back
		}
		pairs = append(pairs, seenPair{pairRecord{
			Prefill: id.prefill, Decode: id.decode, Distance: p.distance, Transfers: p.transfers, Slower: p.slower,
			blameRecord: recordOf(believed, now),
		}, p.seen})
	}
	slices.SortFunc(pairs, func(a, b seenPair) int { return b.seen.Compare(a.seen) })
	for _, p := range pairs[:min(len(pairs), maxPairRecords)] {
		r.Pairs = append(r.Pairs, p.pairRecord)
	}
	record := func(to map[string]blameRecord, kept map[string]*blame) {
		for id, b := range kept {
			if !b.stale(now) && len(to) < maxPairRecords {
				to[id] = recordOf(b.slowness, now)
			}
		}
	}
	record(r.Prefill, l.prefill)
	record(r.Decode, l.decode)
	return r
}

// receivePair takes in what another replica tells of a pair: what it saw since it told of it
// before counts as if it were seen here. Where it did not tell before, its belief is
// adopted unless this replica has one; age is how long ago that was told.
func (l *Links) receivePair(before *pairRecord, r pairRecord, age time.Duration, now time.Time) {
	if r.Distance >= distances || !(math.Abs(r.Slower) < 1e9) || !r.valid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if before == nil {
		pair := entry(l.pairs, r.id(), now, (*pairSlowness).stale)
		pair.distance = r.Distance
		pair.adopt(r.blameRecord, age, now)
		l.noteLocked(r.id(), pair, now)
		return
	}
	if r.Transfers < before.Transfers {
		before = &pairRecord{} // it has started anew
	}
	if n := r.Transfers - before.Transfers; n > 0 {
		l.blameLocked(r.id(), r.Distance, (r.Slower-before.Slower)/float64(n), int(min(n, 1<<16)), now)
	}
}

// adopt takes over what others believe of servers that nothing is known of here.
func (l *Links) adopt(r LinkRecord, age time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	adopt := func(kept map[string]*blame, told map[string]blameRecord) {
		for id, b := range told {
			entry(kept, id, now, (*blame).stale).adopt(b, age, now)
		}
	}
	adopt(l.prefill, r.Prefill)
	adopt(l.decode, r.Decode)
}

// adopt believes what others do, where nothing else is known.
func (s *slowness) adopt(b blameRecord, age time.Duration, now time.Time) {
	if s.samples == 0 && b.valid() && age < slowStale {
		s.log, s.samples, s.seen = b.Log, b.Samples, now.Add(-age)
	}
}

func (b *blameRecord) valid() bool {
	return math.Abs(b.Log) < 100 && b.Samples >= 0 && b.Samples < 1<<20
}

// Samples counts what the record's replica has seen: it says something new when this has
// changed.
func (r *LinkRecord) Samples() (n uint64) {
	for i := range r.Classes {
		n += r.Classes[i].Works
	}
	for i := range r.Pairs {
		n += r.Pairs[i].Transfers
	}
	return n
}
