package cost

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// asAssumed is a transfer of a gigabyte within a rack that takes as long as assumed.
const asAssumed = 20200 * time.Microsecond

// samples are those of a pair, as far as they are known here.
func (l *Links) samples(prefill, decode string) int {
	if pair := l.pairs[pairID{prefill, decode}]; pair != nil {
		return pair.samples
	}
	return 0
}

// What is told again teaches nothing again, and of what is told next only the difference.
func TestLinkSync_TakesInEachTransferOnce(t *testing.T) {
	a, b := NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
	observe := func(n int) {
		for range n {
			a.Observe(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, 8*asAssumed, 0, linkTime)
		}
	}
	var sync LinkSync
	observe(5)
	tell(t, &sync, b, a, linkTime)
	first, adopted := seconds(b, at("p", "r1"), at("d", "r1"), linkTime), b.samples("p", "d")
	if adopted == 0 {
		t.Fatal("nothing is adopted of the first record")
	}
	for range 5 {
		tell(t, &sync, b, a, linkTime)
	}
	if got := seconds(b, at("p", "r1"), at("d", "r1"), linkTime); got != first || b.samples("p", "d") != adopted {
		t.Errorf("told the same again: a gigabyte takes %v s, before %v; %d samples, before %d", got, first, b.samples("p", "d"), adopted)
	}
	observe(3)
	tell(t, &sync, b, a, linkTime)
	if got := b.samples("p", "d"); got != adopted+3 {
		t.Errorf("three transfers later it knows %d samples, before %d", got, adopted)
	}
}

// A replica that has started anew counts from nothing: what it saw since counts.
func TestLinkSync_AReplicaThatStartedAnewCountsFromNothing(t *testing.T) {
	old, anew, b := NewLinks(DefaultLinks()), NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
	for range 9 {
		old.Observe(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
	}
	var sync LinkSync
	tell(t, &sync, b, old, linkTime)
	before := b.samples("p", "d")
	for range 2 {
		anew.Observe(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
	}
	tell(t, &sync, b, anew, linkTime)
	if got := b.samples("p", "d"); got != before+2 {
		t.Errorf("it knows %d samples, before %d", got, before)
	}
}

// Of a pair that a replica names for the first time, in a record that is not its first, all
// transfers are news; of its first record they are what it believes.
func TestLinkSync_APairThatIsNamedLaterIsNewsInFull(t *testing.T) {
	a, b := NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
	var sync LinkSync
	a.Observe(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
	tell(t, &sync, b, a, linkTime)
	b.Observe(at("q", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime) // so it adopts no belief
	for range 3 {
		a.Observe(at("q", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
		a.Observe(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
	}
	r := told(t, a, linkTime)
	sync.MarkNew(&r)
	sync.TakeIn(b, r, 0, linkTime)
	if got := b.samples("q", "d"); got != 1+3 {
		t.Errorf("of the pair that is new it knows %d samples, want 4", got)
	}
	if got := b.samples("p", "d"); got != 1+3 {
		t.Errorf("of the pair that was named before it knows %d samples, want 4", got)
	}
}

// A pair that failed before a transfer was seen is believed nothing of, and its transfers
// since count as those of any other.
func TestLinkRecord_TransfersOfAPairThatFailedFirstCount(t *testing.T) {
	a, b := NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
	a.Blame("p", "d", linkTime)
	var sync LinkSync
	tell(t, &sync, b, a, linkTime)
	for range 3 {
		a.Observe(at("p", "r1").LinkEnd(), at("d", "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
	}
	tell(t, &sync, b, a, linkTime)
	if got := b.samples("p", "d"); got != 3 {
		t.Errorf("it knows %d samples, want 3", got)
	}
}

// A failure is told of neither itself nor soon after; what is left of it later is a belief
// like any other.
func TestLinkRecord_AFailureIsNotToldOfForTwoMinutes(t *testing.T) {
	for after, want := range map[time.Duration]float64{0: 0, slowHalf - 1: 0, slowHalf: 1} {
		l := NewLinks(DefaultLinks())
		l.Blame("p", "d", linkTime)
		r := l.Record(linkTime.Add(after))
		if len(r.Pairs) != 1 || r.Pairs[0].Log != want {
			t.Errorf("%v after it: %+v, want %v", after, r.Pairs, want)
		}
	}
}

// What a replica believes of servers reaches those that know nothing of them: of prefill and
// of decode servers.
func TestLinkRecord_BeliefsOfServersAreAdoptedWhereNothingIsKnown(t *testing.T) {
	for name, slow := range map[string]func(i int) (p, d string){
		"prefill": func(i int) (string, string) { return "slow", fmt.Sprint("d", i%4) },
		"decode":  func(i int) (string, string) { return fmt.Sprint("p", i%4), "slow" },
	} {
		a := NewLinks(DefaultLinks())
		for i := range 80 {
			now := linkTime.Add(time.Duration(i) * time.Second)
			a.Observe(at(fmt.Sprint("p", i%4), "r1").LinkEnd(), at(fmt.Sprint("d", i/4%4), "r1").LinkEnd(), 1e9, asAssumed, 0, now)
			p, d := slow(i)
			a.Observe(at(p, "r1").LinkEnd(), at(d, "r1").LinkEnd(), 1e9, 8*asAssumed, 0, now)
		}
		now := linkTime.Add(80 * time.Second)
		r := told(t, a, now)
		for age, adopted := range map[time.Duration]bool{0: true, slowStale - 1: true, slowStale: false} {
			b := NewLinks(DefaultLinks())
			b.adopt(r, age, now)
			of := map[string]*serverSlowness{"prefill": b.prefill["slow"], "decode": b.decode["slow"]}[name]
			if of == nil || (of.samples > 0 && of.log > 1) != adopted {
				t.Errorf("%s, %v old: %+v is believed, adopted: want %v", name, age, of, adopted)
			}
		}
		b := NewLinks(DefaultLinks())
		new(LinkSync).TakeIn(b, r, 0, now)
		p, d := at("slow", "r1"), at("new", "r1")
		if name == "decode" {
			p, d = d, p
		}
		if got := seconds(b, p, d, now); got < 4/50.0 {
			t.Errorf("%s: with a server that none has met a gigabyte is believed to take %.3f s", name, got)
		}
	}
}

// A record names so many pairs, and so many servers of each role, and no more.
func TestLinkRecord_NamesSoManyServersAndNoMore(t *testing.T) {
	l := NewLinks(DefaultLinks())
	for i := range maxPairRecords + 10 {
		l.Observe(at(fmt.Sprint("p", i), "r1").LinkEnd(), at(fmt.Sprint("d", i), "r1").LinkEnd(), 1e9, asAssumed, 0, linkTime)
	}
	if r := l.Record(linkTime); len(r.Prefill) != maxPairRecords || len(r.Decode) != maxPairRecords || len(r.Pairs) != maxPairRecords {
		t.Errorf("%d prefill servers, %d decode servers, %d pairs; want %d of each", len(r.Prefill), len(r.Decode), len(r.Pairs), maxPairRecords)
	}
	for stale, told := range map[time.Duration]int{slowStale: maxPairRecords, slowStale + 1: 0} {
		if r := l.Record(linkTime.Add(stale)); len(r.Prefill) != told || len(r.Pairs) != told {
			t.Errorf("%v later: %d prefill servers, %d pairs, want %d", stale, len(r.Prefill), len(r.Pairs), told)
		}
	}
}

// What is remembered of a replica's pairs is bounded: the pairs of servers that are gone are
// forgotten at some time.
func TestLinkSync_MemoryIsBounded(t *testing.T) {
	l, now := NewLinks(DefaultLinks()), linkTime
	var sync LinkSync
	for round, want := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2} {
		var r LinkRecord
		for i := range maxPairRecords {
			r.Pairs = append(r.Pairs, pairRecord{Prefill: fmt.Sprint("p", round), Decode: fmt.Sprint("d", i), Distance: SameRack, Transfers: 1})
		}
		sync.TakeIn(l, r, 0, now)
		if len(sync.pairs) != want*maxPairRecords {
			t.Fatalf("after %d records of other servers %d pairs are remembered, want %d", round+1, len(sync.pairs), want*maxPairRecords)
		}
	}
}

// Numbers at the edge of what makes sense, and just beyond it.
func TestLinkRecord_EdgesOfWhatIsTakenIn(t *testing.T) {
	for name, c := range map[string]struct {
		record slownessRecord
		valid  bool
	}{
		"nothing":         {slownessRecord{}, true},
		"slow":            {slownessRecord{Log: 2, Samples: 8}, true},
		"fast":            {slownessRecord{Log: -2, Samples: 8}, true},
		"many samples":    {slownessRecord{Log: 2, Samples: 1<<20 - 1}, true},
		"too many":        {slownessRecord{Log: 2, Samples: 1 << 20}, false},
		"less than none":  {slownessRecord{Log: 2, Samples: -1}, false},
		"slower than any": {slownessRecord{Log: 100, Samples: 8}, false},
		"faster than any": {slownessRecord{Log: -100, Samples: 8}, false},
	} {
		if got := c.record.valid(); got != c.valid {
			t.Errorf("%s: %v", name, got)
		}
	}
	l := NewLinks(DefaultLinks())
	l.receivePair(nil, pairRecord{Prefill: "p", Decode: "d", Distance: distances, Transfers: 1}, 0, linkTime)
	if len(l.pairs) != 0 {
		t.Error("a class of distance that there is not is taken in")
	}
}

// What partners said counts for ten minutes: a server of which only one was heard since is
// not blamed by that one alone.
func TestWitnesses_OnesLongSilentAreNotHeard(t *testing.T) {
	var w peerSamples
	w.observe("d1", 2, linkTime)
	w.observe("d2", 2, linkTime.Add(time.Second))
	for after, several := range map[time.Duration]bool{time.Second: true, slowStale - 1: true, slowStale: false} {
		if _, got := w.majority(linkTime.Add(after)); got != several {
			t.Errorf("%v later: several %v", after, got)
		}
	}
}

// A server's link is taken by what it sends or receives for as long as that takes between neighbours,
// wherever it goes, and until it ends.
func TestTransfer_TakesTheLinksOfItsServers(t *testing.T) {
	l := NewLinks(LinkPrior{{BytesPerSecond: 1e10}, {BytesPerSecond: 1e10}, {BytesPerSecond: 1e9}, {BytesPerSecond: 1e9}})
	prefill, decode := []Candidate{*at("p", "r1"), *at("q", "r1")}, []Candidate{*at("d", "r1"), *at("e", "r2")}
	moving := func() (seconds [4]float64) {
		l.SetMoving(prefill, decode, linkTime)
		for i, c := range append(slices.Clone(prefill), decode...) {
			seconds[i] = math.Round(1000*c.Moving.Seconds()) / 1000
		}
		return seconds
	}
	near, far := l.Begin(prefill[0].LinkEnd(), decode[0].LinkEnd(), 1e10, linkTime), l.Begin(prefill[0].LinkEnd(), decode[1].LinkEnd(), 2e10, linkTime)
	if got := moving(); got != [4]float64{3, 0, 1, 2} {
		t.Errorf("taken for %v s", got)
	}
	near.End(linkTime)
	if got := moving(); got != [4]float64{2, 0, 0, 2} {
		t.Errorf("one has ended, taken for %v s", got)
	}
	far.End(linkTime)
	if got := moving(); got != [4]float64{} {
		t.Errorf("both have ended, taken for %v s", got)
	}
}

// What is to come takes the links of both servers too, from when its prefill is predicted to be done; no longer what
// has begun to move of it, and nothing once it has ended.
func TestExpectedTransfer_TakesTheLinksFromWhenItIsDue(t *testing.T) {
	l := NewLinks(LinkPrior{{BytesPerSecond: 1e10}, {BytesPerSecond: 1e10}, {BytesPerSecond: 1e9}, {BytesPerSecond: 1e9}})
	prefill, decode := []Candidate{*at("p", "r1"), *at("q", "r1")}, []Candidate{*at("d", "r1"), *at("e", "r2")}
	coming := func(after time.Duration) (ends [4][3]float64) {
		l.SetMoving(prefill, decode, linkTime.Add(after))
		for i, c := range append(slices.Clone(prefill), decode...) {
			for k, d := range []time.Duration{c.Moving, c.Coming, c.ComesIn} {
				ends[i][k] = math.Round(1000*d.Seconds()) / 1000
			}
		}
		return ends
	}
	check := func(what string, after time.Duration, want [4][3]float64) {
		t.Helper()
		if got := coming(after); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near := l.Expect(prefill[0].LinkEnd(), decode[0].LinkEnd(), 1e10, 100, time.Second, linkTime)
	far := l.Expect(prefill[0].LinkEnd(), decode[1].LinkEnd(), 3e10, 100, 5*time.Second, linkTime)
	check("two are expected", 0, [4][3]float64{{0, 4, 4}, {}, {0, 1, 1}, {0, 3, 5}})
	check("two seconds later", 2*time.Second, [4][3]float64{{0, 4, 2}, {}, {0, 1, 0}, {0, 3, 3}})
	moves := l.Begin(prefill[0].LinkEnd(), decode[1].LinkEnd(), 1e10, linkTime)
	far.Less(1e10)
	check("a third of one has begun", 0, [4][3]float64{{1, 3, 3.667}, {}, {0, 1, 1}, {1, 2, 5}})
	far.Less(9e10) // more than there is
	near.End()
	near.End()
	near.Less(1e9)
	check("one has begun, the other has ended", 0, [4][3]float64{{1, 0, 0}, {}, {}, {1, 0, 0}})
	far.End()
	moves.End(linkTime)
	if check("nothing is left", 0, [4][3]float64{}); len(l.sending)+len(l.receiving) != 0 {
		t.Errorf("%v and %v are kept", l.sending, l.receiving)
	}
	var none ExpectedTransfer
	none.Less(1)
	none.End()
}

// Room for the KV that is to come is kept on decode, and stands empty until it comes, in the mean of its tokens.
func TestExpectedTransfer_KeepsRoomOnDecode(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, d := at("p", "r1"), at("d", "r1")
	check := func(what string, after time.Duration, tokens int, in time.Duration) {
		t.Helper()
		sends, receives := []Candidate{*p}, []Candidate{*d}
		l.SetMoving(sends, receives, linkTime.Add(after))
		if c := receives[0]; c.KVComing != tokens || c.KVComesIn.Round(time.Millisecond) != in || sends[0].KVComing != 0 {
			t.Errorf("%s: %d tokens come in %v, want %d in %v; %d to prefill", what, c.KVComing, c.KVComesIn, tokens, in, sends[0].KVComing)
		}
	}
	small := l.Expect(p.LinkEnd(), d.LinkEnd(), 1e6, 1000, time.Second, linkTime)
	large := l.Expect(p.LinkEnd(), d.LinkEnd(), 1e9, 9000, 11*time.Second, linkTime)
	check("two are to come", 0, 10_000, 10*time.Second)
	check("later", 4*time.Second, 10_000, 6*time.Second)
	check("much later", time.Minute, 10_000, 0)
	large.Less(9e8)
	check("a piece of one has begun to move, and the rest is to come", 0, 10_000, 10*time.Second)
	large.End()
	check("one moves", 0, 1000, time.Second)
	small.End()
	check("both do", 0, 0, 0)
}
