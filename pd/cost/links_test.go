package cost

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// How far two places are from each other is the closest label that both know and share.
func TestDistanceOf_IsTheClosestLabelThatBothShare(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Topology
		want Distance
	}{
		"one host":                        {Topology{"h", "r", "z"}, Topology{"h", "r", "z"}, SameHost},
		"one host, whatever else is said": {Topology{Host: "h", Zone: "z"}, Topology{Host: "h", Zone: "y"}, SameHost},
		"one rack":                        {Topology{"h", "r", "z"}, Topology{"i", "r", "z"}, SameRack},
		"one rack, hosts unknown":         {Topology{"", "r", "z"}, Topology{"", "r", "z"}, SameRack},
		"one zone":                        {Topology{"h", "r", "z"}, Topology{"i", "s", "z"}, SameZone},
		"other zones":                     {Topology{"h", "r", "z"}, Topology{"i", "s", "y"}, Far},
		"one of them says nothing":        {Topology{"h", "r", "z"}, Topology{}, SameZone},
		"only one says its zone":          {Topology{"h", "r", "z"}, Topology{"i", "s", ""}, SameZone},
		"neither says anything":           {Topology{}, Topology{}, SameZone},
	} {
		for way, got := range map[string]Distance{
			"there": DistanceOf(&c.a, &c.b), "back": DistanceOf(&c.b, &c.a), "in a table": inTable(c.a, c.b),
		} {
			if got != c.want {
				t.Errorf("%s, %s: class %d, want %d", name, way, got, c.want)
			}
		}
	}
}

// inTable is the distance by what a table says of the link.
func inTable(a, b Topology) Distance {
	prior := DefaultLinks()
	links := NewLinks(prior).Table([]Candidate{{ID: "p", Topology: a}}, []Candidate{{ID: "d", Topology: b}}, linkTime)
	for distance := range distances {
		if math.Abs(links.SecondsPerByte[0]*prior[distance].BytesPerSecond-1) < 0.01 {
			return distance
		}
	}
	return distances
}

// Between places a transfer costs the latency and the bandwidth of their class.
func TestLinks_BetweenPlacesIsTheirClass(t *testing.T) {
	l := NewLinks(DefaultLinks())
	latency, perByte := l.Estimate(&Topology{Rack: "r1"}, &Topology{Rack: "r1"}, linkTime)
	if math.Abs(latency-200e-6) > 1e-9 || math.Abs(50e9*perByte-1) > 1e-6 {
		t.Errorf("%v s and %v s a byte", latency, perByte)
	}
}

// What most servers on both linkEnds say is the class's: others of it, which no transfer met, are
// believed as slow, and nothing is held against any of the servers that said so.
func TestLinks_WhatAllSayIsTheClass(t *testing.T) {
	l := NewLinks(DefaultLinks())
	now := teach(l, evenly(4, 4), 10, linkTime)
	all := evenly(4, 4)
	for id := range all {
		all[id] = 8
	}
	now = teach(l, all, 30, now)
	latency, perByte := l.Estimate(&Topology{Rack: "r1"}, &Topology{Rack: "r1"}, now)
	if got := (latency + 1e9*perByte) / 0.0202; got < 6 || got > 10 {
		t.Errorf("the class is believed to take %.1f times as long as assumed, want 8", got)
	}
	for id, b := range l.prefill {
		if b.differs(now) != 0 {
			t.Errorf("%s is believed to be %v slower than the class", id, b.differs(now))
		}
	}
}

// A fleet of one pair has no other to compare with: what the pair shows is its class.
func TestLinks_OfOnePairTheClassIsLearned(t *testing.T) {
	l := NewLinks(DefaultLinks())
	now := teach(l, evenly(1, 1), 10, linkTime)
	now = teach(l, map[pairID]float64{{"p1", "d1"}: 1.4}, 60, now)
	latency, perByte := l.Estimate(&Topology{Rack: "r1"}, &Topology{Rack: "r1"}, now)
	if got := (latency + 1e9*perByte) / 0.0202; got < 1.3 || got > 1.8 {
		t.Errorf("the class is believed to take %.2f times as long as assumed, want 1.4 and noise", got)
	}
}

// A transfer of which a bound says nothing new is not counted as seen: others would take it
// for one that took as long as is believed.
func TestLinks_WhatTeachesNothingIsNotTold(t *testing.T) {
	p, d := at("p", "r1"), at("d", "r1")
	for name, c := range map[string]struct {
		took, slack time.Duration
		told        uint64
	}{
		"known exactly":             {20200 * time.Microsecond, 0, 1},
		"known exactly, and slower": {25 * time.Millisecond, 0, 1},
		"it may be as believed":     {20 * time.Millisecond, 10 * time.Millisecond, 0},
		"it was slower for certain": {30 * time.Millisecond, 5 * time.Millisecond, 1},
		"it was faster for certain": {10 * time.Millisecond, 5 * time.Millisecond, 1},
	} {
		l := NewLinks(DefaultLinks())
		l.Observe(p.LinkEnd(), d.LinkEnd(), 1e9, c.took, c.slack, linkTime)
		if r := l.Record(linkTime); r.Samples() != c.told {
			t.Errorf("%s: %d are told of, want %d", name, r.Samples(), c.told)
		}
	}
	l := NewLinks(LinkPrior{{BytesPerSecond: 1e15}, {BytesPerSecond: 1e15}, {BytesPerSecond: 1e15}, {BytesPerSecond: 1e15}})
	l.Observe(p.LinkEnd(), d.LinkEnd(), 1, 0, 0, linkTime) // as fast as any transfer may be believed to be
	if r := l.Record(linkTime); r.Samples() != 1 {
		t.Errorf("one that took just what is believed: %d are told of", r.Samples())
	}
}

// Each choice looks at the pairs that are slow: only those are kept among them.
func TestLinks_OnlySlowPairsAreKeptAsSuch(t *testing.T) {
	l := NewLinks(DefaultLinks())
	want := func(when string, n int) {
		t.Helper()
		if len(l.slow) != n {
			t.Errorf("%s: %d pairs are kept as slow, want %d", when, len(l.slow), n)
		}
	}
	now := teach(l, evenly(2, 2), 10, linkTime)
	want("all are well", 0)
	l.Blame("p1", "d1", now)
	l.Blame("p2", "d1", now)
	want("two failed", 2)
	l.Clear("d2", now)
	want("a server of neither failed", 2)
	l.Clear("p1", now.Add(time.Second))
	want("a server failed after that", 2)
	l.Clear("p1", now)
	want("a server of one failed then", 1)
	teach(l, map[pairID]float64{{"p2", "d1"}: 1}, 40, now)
	want("the other has healed", 0)
}

// Of two faults soon after each other both are taken back, whatever came between; a fault
// long after another one has its own before.
func TestLinks_AcquitTakesBackAllFaultsOfOneFailure(t *testing.T) {
	p, d := at("p", "r1"), at("d", "r1")
	for name, c := range map[string]struct {
		apart time.Duration
		slow  bool // afterwards
	}{
		"at once":         {0, false},
		"two minutes on":  {slowHalf, false},
		"some time later": {slowHalf + 1, true},
	} {
		l := NewLinks(DefaultLinks())
		l.Blame("p", "d", linkTime)
		second := linkTime.Add(c.apart)
		l.Blame("p", "d", second)
		l.Clear("d", second)
		if got := seconds(l, p, d, second); (got > 2/50.0) != c.slow {
			t.Errorf("%s: a gigabyte is believed to take %.3f s", name, got)
		}
	}
}

// What failed is seen by the next choice, not by one 50 ms later, and so is what is taken back.
func TestLinks_AFaultIsSeenByTheNextChoice(t *testing.T) {
	l := NewLinks(DefaultLinks())
	prefill, decode := []Candidate{*at("p", "r1")}, []Candidate{*at("d", "r1"), *at("e", "r1")}
	before := l.Table(prefill, decode, linkTime).Latency[0]
	l.Blame("p", "d", linkTime)
	if got := l.Table(prefill, decode, linkTime).Latency[0]; got < 5*before {
		t.Errorf("after a fault: %v, before: %v", got, before)
	}
	l.Clear("d", linkTime)
	if got := l.Table(prefill, decode, linkTime).Latency[0]; got != before {
		t.Errorf("taken back: %v, before: %v", got, before)
	}
}

// Choices soon after each other share one table, as long as they are about the same servers.
func TestLinks_ATableIsSharedByChoicesOfTheSameFleetForAMoment(t *testing.T) {
	servers := func(ids ...string) (all []Candidate) {
		for _, id := range ids {
			all = append(all, *at(id, "r1"))
		}
		return all
	}
	classed := servers("d1", "d2")
	classed[1].Class = 7
	for name, c := range map[string]struct {
		prefill, decode []Candidate
		after           time.Duration
		shared          bool
	}{
		"the same fleet":             {servers("p1", "p2"), servers("d1", "d2"), 0, true},
		"just before it is old":      {servers("p1", "p2"), servers("d1", "d2"), tableLife - 1, true},
		"old":                        {servers("p1", "p2"), servers("d1", "d2"), tableLife, false},
		"another prefill server":     {servers("p1", "p3"), servers("d1", "d2"), 0, false},
		"another decode server":      {servers("p1", "p2"), servers("d1", "d3"), 0, false},
		"one prefill server more":    {servers("p1", "p2", "p3"), servers("d1", "d2"), 0, false},
		"one decode server less":     {servers("p1", "p2"), servers("d1"), 0, false},
		"the same in another order":  {servers("p2", "p1"), servers("d1", "d2"), 0, false},
		"one runs other weights now": {servers("p1", "p2"), classed, 0, false},
	} {
		l := NewLinks(DefaultLinks())
		first := l.Table(servers("p1", "p2"), servers("d1", "d2"), linkTime)
		second := l.Table(c.prefill, c.decode, linkTime.Add(c.after))
		if (first == second) != c.shared {
			t.Errorf("%s: shared %v", name, first == second)
		}
		if n := second.Prefills(len(c.decode)); n != len(c.prefill) {
			t.Errorf("%s: links of %d prefill servers", name, n)
		}
	}
}

// Sixteen models asked for in turn each keep their table; with one more all start anew.
func TestLinks_TablesOfSomeFleetsAreKept(t *testing.T) {
	fleet := func(n int) ([]Candidate, []Candidate) {
		id := string(rune('a' + n))
		return []Candidate{*at("p"+id, "r1")}, []Candidate{*at("d"+id, "r1")}
	}
	l := NewLinks(DefaultLinks())
	var first [maxTables + 1]*order.LinkTable
	for n := range maxTables {
		prefill, decode := fleet(n)
		first[n] = l.Table(prefill, decode, linkTime)
	}
	for n := range maxTables {
		if prefill, decode := fleet(n); l.Table(prefill, decode, linkTime) != first[n] {
			t.Errorf("the table of fleet %d is not kept", n)
		}
	}
	prefill, decode := fleet(maxTables)
	last := l.Table(prefill, decode, linkTime)
	if len(l.tables) != 1 || l.Table(prefill, decode, linkTime) != last {
		t.Errorf("with one more fleet %d tables are kept", len(l.tables))
	}
}

// Filling the table of a fleet four times as large takes four times as long, and is done a fourth as often. A table that
// is too old does not stay beside those of the fleets that come after it, as while all servers are replaced.
func TestLinks_ALargeTableIsBelievedLonger(t *testing.T) {
	servers := func(role string, n int) (all []Candidate) {
		for i := range n {
			all = append(all, *at(fmt.Sprint(role, i), "r1"))
		}
		return all
	}
	l := NewLinks(DefaultLinks())
	prefill, decode := servers("p", 512), servers("d", 512)
	first := l.Table(prefill, decode, linkTime)
	if l.Table(prefill, decode, linkTime.Add(4*tableLife-1)) != first {
		t.Error("it is filled anew as often as that of a quarter of the pairs")
	}
	second := linkTime.Add(4 * tableLife)
	if l.Table(prefill, decode, second) == first {
		t.Error("it is believed for ever")
	}
	l.Table(prefill[1:], decode, second)
	if len(l.tables) != 2 {
		t.Errorf("%d tables are kept of two fleets", len(l.tables))
	}
	if l.Table(prefill[2:], decode, second.Add(4*tableLife)); len(l.tables) != 1 {
		t.Errorf("%d tables are kept, and one is believed", len(l.tables))
	}
}

// A table that is filled again says nothing of what was believed before.
func TestLinks_FillForgetsWhatWasInTheTable(t *testing.T) {
	l := NewLinks(DefaultLinks())
	prefill, decode := []Candidate{*at("p", "r1")}, []Candidate{*at("d", "r1")}
	var table order.LinkTable
	l.Fill(&table, prefill, decode, linkTime)
	latency, perByte := table.Latency[0], table.SecondsPerByte[0]
	l.Blame("p", "d", linkTime)
	l.Fill(&table, prefill, decode, linkTime)
	l.Clear("d", linkTime)
	l.Fill(&table, prefill, decode, linkTime)
	if table.Latency[0] != latency || table.SecondsPerByte[0] != perByte {
		t.Errorf("%v s, %v s a byte, before %v, %v", table.Latency[0], table.SecondsPerByte[0], latency, perByte)
	}
}

// What is worked out once for prefill servers whose links are alike is what each of them has by itself: in racks and zones,
// with servers and pairs that were slow, and with some that others do not understand.
func TestLinks_FillIsThatOfEachPair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		l := NewLinks(DefaultLinks())
		fleet := func(name string) (servers []Candidate) {
			for i := range rng.IntN(7) {
				c := at(name+strconv.Itoa(i), "r"+strconv.Itoa(rng.IntN(2)))
				c.Topology.Zone, c.Class = "z"+strconv.Itoa(rng.IntN(2)), uint64(rng.IntN(4)/3)
				servers = append(servers, *c)
			}
			return servers
		}
		prefill, decode := fleet("p"), fleet("d")
		slow := func() time.Duration { return time.Duration(rng.IntN(4)) * time.Second }
		for p := range prefill {
			for d := range decode {
				for range rng.IntN(8) {
					l.Observe(prefill[p].LinkEnd(), decode[d].LinkEnd(), 1e8, slow(), 0, linkTime)
				}
			}
		}
		if len(prefill)*len(decode) > 0 && rng.IntN(2) == 0 {
			l.Blame(prefill[0].ID, decode[0].ID, linkTime)
		}
		var table, pair order.LinkTable
		l.Fill(&table, prefill, decode, linkTime)
		fastest := math.Inf(1)
		for p := range prefill {
			first := p
			latency, perByte := table.Row(p, len(decode))
			for d := range decode {
				l.Fill(&pair, prefill[p:p+1], decode[d:d+1], linkTime)
				if latency[d] != pair.Latency[0] || perByte[d] != pair.SecondsPerByte[0] {
					t.Fatalf("%d to %d: %v s, %v s a byte, by itself %v, %v", p, d, latency[d], perByte[d], pair.Latency[0], pair.SecondsPerByte[0])
				}
				fastest = min(fastest, pair.Fastest)
			}
			for q := 0; q < p && first == p; q++ {
				if l, b := table.Row(q, len(decode)); slices.Equal(l, latency) && slices.Equal(b, perByte) {
					first = q
				}
			}
			if got := table.First(p); len(decode) > 0 && got != first {
				t.Fatalf("the links of %d are those of %d, and were found to be those of %d", p, first, got)
			}
		}
		if table.Fastest != fastest {
			t.Fatalf("the fastest has %v s a byte, want %v", table.Fastest, fastest)
		}
	}
}

// BenchmarkLinks_Fill: the links of a fleet of one rack, whose servers have shown little.
func BenchmarkLinks_Fill(b *testing.B) {
	l := NewLinks(DefaultLinks())
	var prefill, decode []Candidate
	for i := range 256 {
		prefill, decode = append(prefill, *at("p"+strconv.Itoa(i), "")), append(decode, *at("d"+strconv.Itoa(i), ""))
	}
	b.ReportAllocs()
	for b.Loop() {
		l.Fill(new(order.LinkTable), prefill, decode, linkTime)
	}
}

// Of the servers of overdue transfers the one with more of them is slow to all, the prefill
// server where both have as many; one transfer alone says nothing of its servers.
func TestLinks_OverdueTransfersSayWhichServerIsSlow(t *testing.T) {
	prefill, decode := []Candidate{*at("p1", "r1"), *at("p2", "r1"), *at("p3", "r1")}, []Candidate{*at("d1", "r1"), *at("d2", "r1"), *at("d3", "r1")}
	for name, c := range map[string]struct {
		overdue []pairID
		slow    string // rows of pairs
	}{
		"one":                               {[]pairID{{"p1", "d1"}}, "x.. ... ..."},
		"two of other servers":              {[]pairID{{"p1", "d1"}, {"p2", "d2"}}, "x.. .x. ..."},
		"two of one prefill server":         {[]pairID{{"p1", "d1"}, {"p1", "d2"}}, "xxx ... ..."},
		"two of one decode server":          {[]pairID{{"p1", "d2"}, {"p3", "d2"}}, ".x. .x. .x."},
		"as many of both":                   {[]pairID{{"p1", "d1"}, {"p1", "d2"}, {"p2", "d1"}, {"p2", "d2"}}, "xxx xxx ..."},
		"of servers that are gone":          {[]pairID{{"p9", "d1"}, {"p1", "d9"}}, "... ... ..."},
		"of none that is asked about":       {nil, "... ... ..."},
		"three, of which two of decode":     {[]pairID{{"p1", "d1"}, {"p2", "d1"}, {"p3", "d3"}}, "x.. x.. x.x"},
		"of two on decode one is elsewhere": {[]pairID{{"p1", "d1"}, {"p9", "d1"}}, "x.. ... ..."},
	} {
		l := NewLinks(DefaultLinks())
		for _, id := range c.overdue {
			l.Begin(at(id.prefill, "r1").LinkEnd(), at(id.decode, "r1").LinkEnd(), 1e9, linkTime)
		}
		var table order.LinkTable
		l.Fill(&table, prefill, decode, linkTime.Add(10*time.Second))
		got := ""
		for i := range 9 {
			if i > 0 && i%3 == 0 {
				got += " "
			}
			if _, perByte := table.Row(i/3, 3); 1e9*perByte[i%3] > 1 {
				got += "x"
			} else {
				got += "."
			}
		}
		if got != c.slow {
			t.Errorf("%s: %s, want %s", name, got, c.slow)
		}
	}
}

// Where there is no room for what is new, what was not heard of for ten minutes goes, and all
// of it only where nothing is that old.
func TestEntry_MakesRoomByWhatIsStale(t *testing.T) {
	full := func(stale int) map[int]*serverSlowness {
		kept := make(map[int]*serverSlowness, maxSlow)
		for i := range maxSlow {
			kept[i] = &serverSlowness{slowness: slowness{seen: linkTime}}
			if i < stale {
				kept[i].seen = linkTime.Add(-slowStale - 1)
			} else if i == stale {
				kept[i].seen = linkTime.Add(-slowStale) // just not
			}
		}
		return kept
	}
	for _, c := range []struct{ stale, left int }{{10, maxSlow - 10 + 1}, {0, 1}} {
		kept := full(c.stale)
		if got := entry(kept, maxSlow-1, linkTime, (*serverSlowness).stale); got != kept[maxSlow-1] || len(kept) != maxSlow {
			t.Errorf("what is known needs no room, and %d are kept", len(kept))
		}
		entry(kept, -1, linkTime, (*serverSlowness).stale)
		if len(kept) != c.left || kept[-1] == nil {
			t.Errorf("%d of %d are stale: %d are kept, want %d", c.stale, maxSlow, len(kept), c.left)
		}
		for i := range c.stale {
			if kept[i] != nil {
				t.Fatalf("%d is stale, and kept", i)
			}
		}
	}
	kept := full(10)
	delete(kept, maxSlow-1)
	if entry(kept, -1, linkTime, (*serverSlowness).stale); len(kept) != maxSlow || kept[0] == nil {
		t.Errorf("there was room for one more, and %d are kept", len(kept))
	}
}
