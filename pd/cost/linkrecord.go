package cost

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// LinkRecord is what one replica has seen of the links, as it is reported to others: sums, of
// which differences are news, and beliefs for replicas that know nothing yet.
type LinkRecord struct {
	Classes [distances]curve.Report   `json:"classes"`
	Pairs   []pairRecord              `json:"pairs,omitempty"`
	Prefill map[string]slownessRecord `json:"prefill,omitempty"` // by server, those that are known
	Decode  map[string]slownessRecord `json:"decode,omitempty"`
}

// pairRecord is one pair.
type pairRecord struct {
	Prefill   string   `json:"p"`
	Decode    string   `json:"d"`
	Distance  Distance `json:"c"`
	Transfers uint64   `json:"n"`           // that this replica saw since it started
	Slower    float64  `json:"s,omitempty"` // sum of their residuals against the class
	slownessRecord
}

// slownessRecord is a belief of a pair or a server: how much slower, a logarithm.
type slownessRecord struct {
	Log     float64 `json:"l,omitempty"`
	Samples int     `json:"k,omitempty"` // as far as they matter
}

// maxPairRecords are reported: those that moved something last.
const maxPairRecords = 1024

func (p *pairRecord) id() pairID { return pairID{p.Prefill, p.Decode} }

func recordOf(s slowness, now time.Time) slownessRecord {
	return slownessRecord{Log: math.Round(1e3*s.decayed(now)) / 1e3, Samples: min(s.samples, 2*slowSamples)}
}

// Record returns what is reported to others.
func (l *Links) Record(now time.Time) LinkRecord {
	r := LinkRecord{Prefill: make(map[string]slownessRecord), Decode: make(map[string]slownessRecord)}
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
		if now.Sub(p.blamedAt) < slowHalf {
			believed = p.before // failures are each replica's own to see, and to take back
		}
		pairs = append(pairs, seenPair{pairRecord{
			Prefill: id.prefill, Decode: id.decode, Distance: p.distance, Transfers: p.transfers, Slower: p.slower,
			slownessRecord: recordOf(believed, now),
		}, p.seen})
	}
	slices.SortFunc(pairs, func(a, b seenPair) int { return b.seen.Compare(a.seen) })
	for _, p := range pairs[:min(len(pairs), maxPairRecords)] {
		r.Pairs = append(r.Pairs, p.pairRecord)
	}
	record := func(to map[string]slownessRecord, kept map[string]*serverSlowness) {
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

// receivePair takes in what another replica reports of a pair: what it saw since it reported it
// before counts as if it were seen here. Where it had not reported it, its belief is
// adopted unless this replica has one; age is how old the report is.
func (l *Links) receivePair(before *pairRecord, r pairRecord, age time.Duration, now time.Time) {
	if r.Distance >= distances || !(math.Abs(r.Slower) < 1e9) || !r.valid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if before == nil {
		pair := entry(l.pairs, r.id(), now, (*pairSlowness).stale)
		pair.distance = r.Distance
		pair.adopt(r.slownessRecord, age, now)
		l.updateSlowLocked(r.id(), pair, now)
		return
	}
	if r.Transfers < before.Transfers {
		before = &pairRecord{} // it has started anew
	}
	if n := r.Transfers - before.Transfers; n > 0 {
		l.attributeLocked(r.id(), r.Distance, (r.Slower-before.Slower)/float64(n), int(min(n, 1<<16)), now)
	}
}

// adopt takes over what others believe of servers that nothing is known of here.
func (l *Links) adopt(r LinkRecord, age time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	adopt := func(kept map[string]*serverSlowness, reported map[string]slownessRecord) {
		for id, b := range reported {
			entry(kept, id, now, (*serverSlowness).stale).adopt(b, age, now)
		}
	}
	adopt(l.prefill, r.Prefill)
	adopt(l.decode, r.Decode)
}

// adopt believes what others do, where nothing else is known.
func (s *slowness) adopt(b slownessRecord, age time.Duration, now time.Time) {
	if s.samples == 0 && b.valid() && age < slowStale {
		s.log, s.samples, s.seen = b.Log, b.Samples, now.Add(-age)
	}
}

func (b *slownessRecord) valid() bool {
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
