package cost

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// linkTable is what was believed of the links of some servers.
type linkTable struct {
	prefill, decode []identity
	filled          time.Time
	table           *order.LinkTable
}

const (
	tableLife = 50 * time.Millisecond // a table is believed for so long
	// tablePairs is how many pairs that is for: 256 servers of each role, whose table takes a millisecond and a
	// megabyte. A larger one is believed longer in proportion, so that it is not most of what a gateway does.
	tablePairs = 1 << 16
	// longestLife bounds that: what a link is blamed for by its transfers is not seen before.
	longestLife = time.Second
	maxTables   = 16 // of different fleets: one for each model that is asked for
)

// Table returns what is believed of the links of some servers, or was lately. Callers
// must not change it.
func (l *Links) Table(prefill, decode []Candidate, now time.Time) *order.LinkTable {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := 0
	for at < len(l.tables) && !l.tables[at].isOf(prefill, decode) {
		at++
	}
	if at < len(l.tables) && l.tables[at].isBelieved(now) {
		return l.tables[at].table
	}
	if at == len(l.tables) {
		l.tables = slices.DeleteFunc(l.tables, func(t linkTable) bool { return !t.isBelieved(now) })
		if len(l.tables) == maxTables {
			clear(l.tables)
			l.tables = l.tables[:0]
		}
		at = len(l.tables)
		l.tables = append(l.tables, linkTable{prefill: ids(prefill), decode: ids(decode)})
	}
	t := new(order.LinkTable)
	l.fillLocked(t, prefill, decode, now)
	l.tables[at].table, l.tables[at].filled = t, now
	return t
}

// isBelieved reports whether the table is not too old.
func (t *linkTable) isBelieved(now time.Time) bool {
	pairs := len(t.prefill) * len(t.decode)
	return now.Sub(t.filled) < min(tableLife*time.Duration(max(pairs, tablePairs))/tablePairs, longestLife)
}

func (t *linkTable) isOf(prefill, decode []Candidate) bool {
	return named(t.prefill, prefill) && named(t.decode, decode)
}

// identity is what a server's links follow from, beside its place.
type identity struct {
	id    string
	class uint64
}

func named(ids []identity, servers []Candidate) bool {
	if len(ids) != len(servers) {
		return false
	}
	for i := range servers {
		if ids[i].id != servers[i].ID || ids[i].class != servers[i].Class {
			return false
		}
	}
	return true
}

func ids(servers []Candidate) []identity {
	all := make([]identity, len(servers))
	for i := range servers {
		all[i] = identity{servers[i].ID, servers[i].Class}
	}
	return all
}

// Fill writes what is believed now of the links of some servers.
func (l *Links) Fill(t *order.LinkTable, prefill, decode []Candidate, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fillLocked(t, prefill, decode, now)
}

func (l *Links) fillLocked(t *order.LinkTable, prefill, decode []Candidate, now time.Time) {
	places := make(map[string]int)
	f := tableFill{table: t, from: numberedTopologies(places, prefill), to: numberedTopologies(places, decode), own: make([]bool, len(prefill))}
	for i, c := range l.classes {
		curve := c.Curve()
		f.latency[i], f.perByte[i] = curve[0], max(curve[1], 1e-6)/1e9
	}
	byPrefill, byDecode := factors(l.prefill, prefill, now), factors(l.decode, decode, now)
	t.Reset(len(prefill))
	t.Fastest = math.Inf(1)
	alike := make(map[linkRow]int)
	for p := range prefill {
		of := linkRow{f.from[p], prefill[p].Class, byPrefill[p]}
		if first, known := alike[of]; known {
			t.ShareRow(p, first)
			f.own[first] = false
			continue
		}
		alike[of], f.own[p] = p, true
		latency, perByte := t.AddRow(p, len(decode))
		for d := range decode {
			class, factor := f.from[p].distance(f.to[d]), max(byPrefill[p], byDecode[d])
			latency[d], perByte[d] = max(0, factor*f.latency[class]), max(0, factor*f.perByte[class])
			t.Fastest = min(t.Fastest, perByte[d])
			if prefill[p].Class != decode[d].Class {
				latency[d] = math.Inf(1) // they do not understand each other's KV
			}
		}
	}
	if len(l.slow) > 0 || len(l.moving) > 0 {
		l.raiseLocked(&f, prefill, decode, now)
	}
	t.Group(len(decode))
}

// linkRow is what the links of a prefill server follow from, beside those of single pairs.
type linkRow struct {
	at     numberedTopology
	class  uint64
	factor float64 // how much slower than its class it has been
}

// raiseLocked makes those pairs slow that are known to be, or whose transfers are overdue.
func (l *Links) raiseLocked(f *tableFill, prefill, decode []Candidate, now time.Time) {
	atPrefill, atDecode := numbers(prefill), numbers(decode)
	for id, s := range l.slow {
		p, known := atPrefill[id.prefill]
		if d, both := atDecode[id.decode]; known && both {
			f.raise(p, d, math.Exp(s.differs(now)))
		}
	}
	f.overdue(l.overdueTransfersLocked(atPrefill, atDecode, now))
}

// factors are how much slower than their class servers have been, by their number.
func factors(kept map[string]*serverSlowness, servers []Candidate, now time.Time) []float64 {
	out := make([]float64, len(servers))
	for i := range servers {
		out[i] = math.Exp(kept[servers[i].ID].differs(now))
	}
	return out
}

func numbers(servers []Candidate) map[string]int {
	out := make(map[string]int, len(servers))
	for i := range servers {
		out[servers[i].ID] = i
	}
	return out
}

// overdueTransfersLocked is the pairs, by number, with transfers that should have ended long ago,
// and how many times their expected time has passed.
func (l *Links) overdueTransfersLocked(prefill, decode map[string]int, now time.Time) map[[2]int]float64 {
	worst := make(map[[2]int]float64)
	for m := range l.moving {
		passed := now.Sub(m.since).Seconds()
		if passed <= overdueLeast+overdueFactor*m.expected {
			continue
		}
		p, known := prefill[m.from.ID]
		if d, both := decode[m.to.ID]; known && both {
			worst[[2]int{p, d}] = max(worst[[2]int{p, d}], passed/max(m.expected, 1e-3))
		}
	}
	return worst
}

// tableFill is a table that is being filled.
type tableFill struct {
	table            *order.LinkTable
	latency, perByte [distances]float64 // by class
	from, to         []numberedTopology
	own              []bool // by prefill server: it shares its row with no other
}

// raise makes a pair at least so many times slower than its class.
func (f *tableFill) raise(p, d int, factor float64) {
	if !f.own[p] {
		f.table.CopyRow(p, len(f.to))
		f.own[p] = true
	}
	latency, perByte := f.table.Row(p, len(f.to))
	class := f.from[p].distance(f.to[d])
	latency[d], perByte[d] = max(latency[d], factor*f.latency[class]), max(perByte[d], factor*f.perByte[class])
}

// overdue makes each pair with an overdue transfer slow, and all pairs of one of its
// servers where that has overdue transfers to several others: of two such servers the one
// with more.
func (f *tableFill) overdue(worst map[[2]int]float64) {
	ofPrefill, ofDecode := make([]int, len(f.from)), make([]int, len(f.to))
	for pair := range worst {
		ofPrefill[pair[0]]++
		ofDecode[pair[1]]++
	}
	for pair, factor := range worst {
		byPrefill, byDecode := ofPrefill[pair[0]], ofDecode[pair[1]]
		switch {
		case byPrefill == 1 && byDecode == 1:
			f.raise(pair[0], pair[1], factor)
		case byPrefill >= byDecode:
			for d := range f.to {
				f.raise(pair[0], d, factor)
			}
		default:
			for p := range f.from {
				f.raise(p, pair[1], factor)
			}
		}
	}
}

// numberedTopology is a place with its labels as numbers, which compare fast; 0 is unknown.
type numberedTopology struct{ host, rack, zone int }

func numberedTopologies(known map[string]int, servers []Candidate) []numberedTopology {
	number := func(label string) int {
		if label == "" {
			return 0
		}
		n, ok := known[label]
		if !ok {
			n = len(known) + 1
			known[label] = n
		}
		return n
	}
	out := make([]numberedTopology, len(servers))
	for i := range servers {
		at := &servers[i].Topology
		out[i] = numberedTopology{number(at.Host), number(at.Rack), number(at.Zone)}
	}
	return out
}

// distance is DistanceOf for spots.
func (a numberedTopology) distance(b numberedTopology) Distance {
	switch {
	case a.host != 0 && a.host == b.host:
		return SameHost
	case a.rack != 0 && a.rack == b.rack:
		return SameRack
	case a.zone != 0 && b.zone != 0 && a.zone != b.zone:
		return Far
	}
	return SameZone
}
