package cost

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// String is the class as settings name it: host, rack, zone or far.
func (d Distance) String() string { return [...]string{"host", "rack", "zone", "far"}[d] }

// ClassStatus is what a class of links is believed to take.
type ClassStatus struct {
	Distance Distance
	Link
}

// PairStatus is what is known of the link between two servers that moved KV.
type PairStatus struct {
	Prefill, Decode string
	Distance        Distance // says nothing where Transfers is 0
	Transfers       uint64   // that this replica has seen, but for the first of two engines that meet
	Moving          int      // transfers that are under way here
	Measured        float64  // times the time of its class that those transfers took, on the geometric mean; 0 where none were
	// Slower is how many times slower than its class choices take it to be, at least 1, and By
	// what is blamed: "pair", "prefill", "decode", or "" where it is as its class.
	Slower   float64
	By       string
	FailedAt time.Time // of the last failed transfer that still counts; zero: none does
}

// Status is what is believed of the classes, nearest first, and of each pair that moved KV lately,
// those that are taken to be slowest first.
func (l *Links) Status(now time.Time) ([]ClassStatus, []PairStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	classes := make([]ClassStatus, distances)
	for i, c := range l.classes {
		curve := c.Curve()
		latency := time.Duration(max(curve[0], 0) * float64(time.Second))
		classes[i] = ClassStatus{Distance(i), Link{Latency: latency, BytesPerSecond: 1e9 / max(curve[1], 1e-6)}}
	}
	moving := make(map[pairID]int)
	for t := range l.moving {
		moving[pairID{t.from.ID, t.to.ID}]++
	}
	var pairs []PairStatus
	for id, pair := range l.pairs {
		pairs = append(pairs, l.statusLocked(id, pair, moving[id], now))
	}
	slices.SortFunc(pairs, func(a, b PairStatus) int {
		return cmp.Or(cmp.Compare(b.Slower, a.Slower), cmp.Compare(b.Transfers, a.Transfers), cmp.Compare(a.Prefill, b.Prefill), cmp.Compare(a.Decode, b.Decode))
	})
	return classes, pairs
}

func (l *Links) statusLocked(id pairID, pair *pairSlowness, moving int, now time.Time) PairStatus {
	s := PairStatus{Prefill: id.prefill, Decode: id.decode, Distance: pair.distance, Transfers: pair.transfers, Moving: moving}
	if pair.transfers > 0 {
		s.Measured = math.Exp(pair.slower / float64(pair.transfers))
	}
	if now.Sub(pair.blamedAt) <= slowHalf {
		s.FailedAt = pair.blamedAt
	}
	worst := 0.0
	for _, blamed := range []struct {
		by  string
		log float64
	}{{"pair", pair.differs(now)}, {"prefill", l.prefill[id.prefill].differs(now)}, {"decode", l.decode[id.decode].differs(now)}} {
		if blamed.log > worst {
			worst, s.By = blamed.log, blamed.by
		}
	}
	s.Slower = math.Exp(worst)
	return s
}
