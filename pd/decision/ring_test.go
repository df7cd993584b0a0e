package decision

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

var arrived = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A ring of decisions over a large fleet is bounded in servers, and the chosen pair of an old
// one can still be explained.
func TestRing_IsBoundedInServers(t *testing.T) {
	f := cost.Candidates{}
	for i := range 256 {
		c := cost.Candidate{ID: fmt.Sprint("p", i), Prefill: pools.Default().Prefill, Step: pools.Default().Step}
		f.Prefill = append(f.Prefill, c)
		c.ID, c.Running = fmt.Sprint("d", i), i
		f.Decode = append(f.Decode, c)
	}
	f.Links = cost.NewLinks(cost.DefaultLinks()).Table(f.Prefill, f.Decode, arrived)
	m, r := cost.Default(), cost.Demand{PromptTokens: 8000, OutputTokens: 100}
	chosen, ok := m.Choose(r, &f, func(int) int { return 0 })
	if !ok || chosen.Prefill == "" {
		t.Fatalf("chosen: %+v", chosen)
	}
	d := NewRing(1024)
	for i := range 1500 {
		d.Add(Record{RequestID: fmt.Sprint(i), Choices: []Choice{{Demand: r, Candidates: f, Chosen: chosen}}})
	}
	remembered := 0
	for i := range d.ring {
		remembered += d.ring[i].candidates()
	}
	if remembered > maxCandidates || remembered != d.candidates {
		t.Errorf("%d servers are remembered, counted as %d", remembered, d.candidates)
	}
	newest, _ := d.Find("1499")
	oldest, found := d.Find("476")
	if !found || len(newest.Choices[0].Candidates.Decode) != 256 {
		t.Fatalf("found %v, %d decode servers of the newest", found, len(newest.Choices[0].Candidates.Decode))
	}
	explain := func(c Choice) []cost.Explained { return m.Explain(c.Demand, c.Candidates, c.Chosen, 1) }
	want, got := explain(newest.Choices[0]), explain(oldest.Choices[0])
	if len(got) == 0 || got[0] != want[0] {
		t.Errorf("explained %+v\n     want %+v", got, want)
	}
}

// What an attempt took is written down when its stream has ended, beside what others have read
// already; it never reaches a request of the same name that came at another time.
func TestRing_IsCompletedWhenAStreamEnds(t *testing.T) {
	d := NewRing(8)
	d.Add(Record{RequestID: "r", At: arrived, Choices: []Choice{{}, {}}})
	before, _ := d.Find("r")
	m := Measured{FirstToken: 5}
	d.Complete("r", arrived, 1, m, "broken")
	after, _ := d.Find("r")
	if before.Choices[1].Measured != (Measured{}) || after.Choices[1].Measured != m || after.Choices[1].Outcome != "broken" || after.Choices[0].Measured != (Measured{}) {
		t.Errorf("before %+v\nafter %+v", before.Choices, after.Choices)
	}
	d.Complete("r", arrived.Add(1), 0, m, "another's")
	d.Complete("r", arrived, 2, m, "of no attempt")
	d.Complete("unknown", arrived, 0, m, "nobody's")
	if last, _ := d.Find("r"); last.Choices[0].Measured != (Measured{}) || last.Choices[0].Outcome != "" || len(last.Choices) != 2 {
		t.Errorf("%+v", last.Choices)
	}
}

// The newest decision keeps all its servers, however many they are.
func TestRing_KeepsTheNewestWhole(t *testing.T) {
	d := NewRing(4)
	large := cost.Candidates{Decode: make([]cost.Candidate, maxCandidates+1)}
	for i := range 6 {
		d.Add(Record{RequestID: fmt.Sprint(i), Choices: []Choice{{Candidates: large}}})
		newest, _ := d.Find(fmt.Sprint(i))
		if n := len(newest.Choices[0].Candidates.Decode); n != maxCandidates+1 {
			t.Errorf("of decision %d, the newest, %d servers are kept", i, n)
		}
	}
	if _, found := d.Find("1"); found {
		t.Error("more decisions are kept than asked for")
	}
	if oldest, found := d.Find("2"); !found || len(oldest.Choices[0].Candidates.Decode) > 1 {
		t.Errorf("of the oldest %d servers are kept", len(oldest.Choices[0].Candidates.Decode))
	}
}

// The last n are remembered, and of one request the newest.
func TestRing_RemembersTheLast(t *testing.T) {
	d := NewRing(3)
	for _, id := range []string{"a", "b", "c", "d", "b"} {
		d.Add(Record{RequestID: id, Outcome: id + "!"})
	}
	if _, found := d.Find("a"); found {
		t.Error("the oldest is still there")
	}
	for _, id := range []string{"c", "d", "b"} {
		if got, found := d.Find(id); !found || got.Outcome != id+"!" {
			t.Errorf("%s: %+v, %v", id, got, found)
		}
	}
}

// Requests end, are looked up and come in at the same time.
func TestRing_IsUsedByManyAtOnce(t *testing.T) {
	d := NewRing(16)
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 200 {
				id := fmt.Sprint(worker, " ", i)
				d.Add(Record{RequestID: id, At: arrived, Choices: []Choice{{}}})
				d.Complete(id, arrived, 0, Measured{FirstToken: 1}, "")
				if found, ok := d.Find(id); ok && found.Choices[0].Measured.FirstToken > 1 {
					t.Errorf("%+v", found)
				}
			}
		})
	}
	all.Wait()
}
