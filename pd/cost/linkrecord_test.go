package cost

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// told is what arrives of what a replica tells of its links.
func told(t *testing.T, l *Links, now time.Time) (r LinkRecord) {
	t.Helper()
	text, err := json.Marshal(l.Record(now))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// tell lets l take in what another replica tells now.
func tell(t *testing.T, s *LinkSync, l, other *Links, now time.Time) {
	t.Helper()
	s.TakeIn(l, told(t, other, now), 0, now)
}

// What one replica saw of links, the other believes: pairs, servers and classes.
func TestLinkRecord_OneBelievesWhatTheOtherSaw(t *testing.T) {
	const servers = 4
	for name, slow := range map[string]map[pairID]float64{
		"a pair":   {{"p1", "d1"}: 8},
		"a server": {{"p1", "d1"}: 8, {"p1", "d2"}: 8, {"p1", "d3"}: 8, {"p1", "d4"}: 8},
		"the class": func() map[pairID]float64 {
			all := evenly(servers, servers)
			for id := range all {
				all[id] = 4
			}
			return all
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			a, b, fresh := NewLinks(DefaultLinks()), NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
			now := teach(a, evenly(servers, servers), 10, linkTime)
			teach(b, evenly(servers, servers), 10, linkTime)
			var sync LinkSync
			tell(t, &sync, b, a, now)
			factors := evenly(servers, servers)
			for id, factor := range slow {
				factors[id] = factor
			}
			for range 15 {
				now = teach(a, factors, 1, now)
				tell(t, &sync, b, a, now)
			}
			tell(t, new(LinkSync), fresh, a, now)
			own := table(a, servers, now)
			for name, l := range map[string]*Links{"the other": b, "one that starts": fresh} {
				for id, want := range own {
					if got := table(l, servers, now)[id]; got < 0.6*want || got > 1.6*want {
						t.Errorf("%s: %v is believed to take %.1f times as long, where it was seen %.1f", name, id, got, want)
					}
				}
			}
		})
	}
}

// table is how many times longer than assumed each pair is believed to take.
func table(l *Links, servers int, now time.Time) map[pairID]float64 {
	all := evenly(servers, servers)
	for id := range all {
		all[id] = seconds(l, at(id.prefill, "r1"), at(id.decode, "r1"), now) / 0.0202
	}
	return all
}

// Failures are each replica's own to see and to take back.
func TestLinkRecord_ChargesAreNotTold(t *testing.T) {
	a, b := NewLinks(DefaultLinks()), NewLinks(DefaultLinks())
	a.Blame("p1", "d1", linkTime)
	tell(t, new(LinkSync), b, a, linkTime)
	within(t, "blamedAt elsewhere", seconds(b, at("p1", "r1"), at("d1", "r1"), linkTime), 0.0202, 0.1)
}

func TestLinkRecord_IsBounded(t *testing.T) {
	l := NewLinks(DefaultLinks())
	for i := range 3 * maxPairRecords {
		l.Observe(at(fmt.Sprint("p", i), "").LinkEnd(), at(fmt.Sprint("d", i), "").LinkEnd(), 1e9, time.Second, 0, linkTime.Add(time.Duration(i)*time.Millisecond))
	}
	text, err := json.Marshal(l.Record(linkTime))
	if err != nil || len(text) > 4<<20 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	r := l.Record(linkTime)
	if len(r.Pairs) != maxPairRecords || r.Pairs[0].Prefill != fmt.Sprint("p", 3*maxPairRecords-1) {
		t.Errorf("%d pairs, first %v", len(r.Pairs), r.Pairs[0])
	}
}

func TestLinkRecord_NonsenseIsNotTakenIn(t *testing.T) {
	l := NewLinks(DefaultLinks())
	for _, text := range []string{
		`{"pairs":[{"p":"p1","d":"d1","c":9,"n":5}]}`,
		`{"pairs":[{"p":"p1","d":"d1","c":1,"n":5,"l":1e9,"k":9}]}`,
		`{"pairs":[{"p":"p1","d":"d1","c":1,"n":5,"l":3,"k":-9}]}`,
		`{"classes":[{"c":[-1,0,0],"k":1}]}`,
		`{"prefill":{"p1":{"l":1e300,"k":9}}}`,
	} {
		var sync LinkSync
		var r LinkRecord
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		sync.TakeIn(l, r, 0, linkTime)
		sync.TakeIn(l, r, 0, linkTime)
	}
	within(t, "nonsense", seconds(l, at("p1", "r1"), at("d1", "r1"), linkTime), 0.0202, 0.01)
}
