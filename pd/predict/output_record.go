package predict

import (
	"cmp"
	"slices"
	"time"
)

// OutputRecord is one mean as it is reported to other replicas: sums, of which differences are
// news, and what is believed.
type OutputRecord struct {
	outputKey
	Count  uint64  `json:"n"`
	Sum    float64 `json:"s"`
	Tokens float64 `json:"l"`
	Known  float64 `json:"k"` // answers that the belief remembers
}

func (r *OutputRecord) valid() bool {
	return r.Sum >= 0 && r.Sum < 1e15 && r.Tokens >= 0 && r.Tokens < 1e9 && r.Known >= 0 && r.Known <= outputMemory &&
		len(r.Model)+len(r.Tenant) < 1024
}

// Records returns what is reported to others: the means that were seen last.
func (o *Outputs) Records(now time.Time) (records []OutputRecord) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := make(map[outputKey]time.Time)
	for key, m := range o.means {
		if m.answers > 0 && now.Sub(m.seen) < stale {
			records = append(records, OutputRecord{key, m.count, m.sum, m.tokens, m.answers})
			seen[key] = m.seen
		}
	}
	slices.SortFunc(records, func(a, b OutputRecord) int {
		return cmp.Or(seen[b.outputKey].Compare(seen[a.outputKey]), cmp.Compare(b.Count, a.Count))
	})
	return records[:min(len(records), maxRecords)]
}

// receive takes in what another replica reports: what it saw since its report before, or
// what it believes where there was none and nothing is known here.
func (o *Outputs) receive(before *OutputRecord, r OutputRecord, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.entryLocked(r.outputKey, now)
	switch {
	case m == nil:
	case before == nil:
		if m.answers == 0 && r.Known > 0 {
			m.learn(r.Tokens, r.Known, now)
		}
	default:
		if r.Count < before.Count {
			before = &OutputRecord{} // it has started anew
		}
		if n := float64(r.Count - before.Count); n > 0 {
			m.learn(max(0, r.Sum-before.Sum)/n, n, now)
		}
	}
}

// OutputSync remembers what of one replica's records was taken in, so that of the next only
// the difference is. The zero value is a replica that has reported nothing.
type OutputSync struct {
	records map[outputKey]OutputRecord
}

// MarkNew is for records that are not the replica's first: of means that it reports for the
// first time it has seen everything since the records before.
func (s *OutputSync) MarkNew(records []OutputRecord) {
	for i := range records {
		if _, known := s.records[records[i].outputKey]; !known {
			s.set(records[i].outputKey, OutputRecord{})
		}
	}
}

// TakeIn teaches outputs what the replica saw since its records before, and what it believes
// where there are none.
func (s *OutputSync) TakeIn(o *Outputs, records []OutputRecord, now time.Time) {
	if len(s.records) > 8*maxRecords {
		clear(s.records) // of tenants that are gone, most of them
	}
	for _, r := range records[:min(len(records), maxRecords)] {
		if !r.valid() {
			continue
		}
		if before, knew := s.records[r.outputKey]; knew {
			o.receive(&before, r, now)
		} else {
			o.receive(nil, r, now)
		}
		s.set(r.outputKey, r)
	}
}

func (s *OutputSync) set(key outputKey, r OutputRecord) {
	if s.records == nil {
		s.records = make(map[outputKey]OutputRecord)
	}
	s.records[key] = r
}
