package cost

import (
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// LinkSync remembers what of one replica's records was taken in, so that of the next only
// the difference is. The zero value is a replica of which nothing was received.
type LinkSync struct {
	pairs   map[pairID]pairRecord
	classes *[distances]curve.Report // nil: nothing
}

// MarkNew is for a record that is not the replica's first: of pairs that it reports for the
// first time it has seen everything since the record before.
func (s *LinkSync) MarkNew(r *LinkRecord) {
	for i := range r.Pairs {
		id := r.Pairs[i].id()
		if _, known := s.pairs[id]; !known {
			s.set(id, pairRecord{})
		}
	}
}

// TakeIn teaches links what the replica saw since its record before, and what it believes
// where there is none; age is how long ago it wrote the record.
func (s *LinkSync) TakeIn(l *Links, r LinkRecord, age time.Duration, now time.Time) {
	if s.classes == nil {
		l.adopt(r, age, now)
	}
	for i := range r.Classes {
		if !r.Classes[i].Valid() {
			return
		}
	}
	for i, c := range l.classes {
		if s.classes == nil {
			c.Receive(nil, r.Classes[i], age, now)
		} else {
			c.Receive(&s.classes[i], r.Classes[i], age, now)
		}
	}
	s.classes = &r.Classes
	if len(s.pairs) > 8*maxPairRecords {
		clear(s.pairs) // of servers that are gone, most of them
	}
	for _, pair := range r.Pairs[:min(len(r.Pairs), maxPairRecords)] {
		if before, knew := s.pairs[pair.id()]; knew {
			l.receivePair(&before, pair, age, now)
		} else {
			l.receivePair(nil, pair, age, now)
		}
		s.set(pair.id(), pair)
	}
}

func (s *LinkSync) set(id pairID, r pairRecord) {
	if s.pairs == nil {
		s.pairs = make(map[pairID]pairRecord)
	}
	s.pairs[id] = r
}
