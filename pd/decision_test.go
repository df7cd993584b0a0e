package pd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// However many pairs are cheaper, people see what decode alone would have cost.
func TestExplain_ShowsTheChosenAndTheCheapestAlone(t *testing.T) {
	f := Field{
		Prefill: []Candidate{{ID: "p0"}, {ID: "p1"}, {ID: "p2"}},
		Decode:  []Candidate{{ID: "d0", Running: 200}, {ID: "d1", Running: 100}},
	}
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			servers[i].Prefill, servers[i].Step = pools.Default().Prefill, pools.Default().Step
		}
	}
	f = linked(f)
	m, r := DefaultCost(), Demand{PromptTokens: 8000, OutputTokens: 100}
	chosen, ok := m.Choose(r, &f, rand.New(rand.NewPCG(1, 1)).IntN)
	if !ok || chosen.Prefill == "" {
		t.Fatalf("chosen: %+v", chosen)
	}
	shown := m.Explain(Choice{Demand: r, Field: f, Chosen: chosen}, 2)
	marked, alone := 0, ""
	for _, e := range shown {
		if e.Chosen {
			marked++
		}
		if e.Prefill == "" {
			alone += e.Decode
		}
		first := e.Ready + e.Queue + e.Compute + e.Transfer + e.Room + e.Step
		if math.Abs(first-e.First) > 0.01 || math.Abs(first+e.Pace+e.Burden+e.Misfit-e.Total) > 0.01 {
			t.Errorf("the terms do not add up: %+v", e)
		}
		if want := float64(8000 * m.KVBytesPerToken); e.Prefill != "" && e.Moved != want || e.Prefill == "" && e.Moved != 0 {
			t.Errorf("%+v moves %v bytes", e, e.Moved)
		}
	}
	if marked != 1 || alone != "d1" {
		t.Errorf("%d are marked, alone is shown: %q of %+v", marked, alone, shown)
	}
}

// A ring of decisions over a large fleet is bounded in servers, and the chosen pair of an old
// one can still be explained.
func TestDecisions_AreBoundedInServers(t *testing.T) {
	f := Field{}
	for i := range 256 {
		c := Candidate{ID: fmt.Sprint("p", i), Prefill: pools.Default().Prefill, Step: pools.Default().Step}
		f.Prefill = append(f.Prefill, c)
		c.ID, c.Running = fmt.Sprint("d", i), i
		f.Decode = append(f.Decode, c)
	}
	f = linked(f)
	m, r := DefaultCost(), Demand{PromptTokens: 8000, OutputTokens: 100}
	chosen, ok := m.Choose(r, &f, func(int) int { return 0 })
	if !ok || chosen.Prefill == "" {
		t.Fatalf("chosen: %+v", chosen)
	}
	d := NewDecisions(1024)
	for i := range 1500 {
		d.Add(Decision{RequestID: fmt.Sprint(i), Choices: []Choice{{Demand: r, Field: f, Chosen: chosen}}})
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
	if !found || len(newest.Choices[0].Field.Decode) != 256 {
		t.Fatalf("found %v, %d decode servers of the newest", found, len(newest.Choices[0].Field.Decode))
	}
	want, got := m.Explain(newest.Choices[0], 1), m.Explain(oldest.Choices[0], 1)
	if len(got) == 0 || got[0] != want[0] {
		t.Errorf("explained %+v\n     want %+v", got, want)
	}
}

// Several people may ask about one decision at a time: explaining it leaves it as it is.
func TestExplain_ChangesNothingOfTheDecision(t *testing.T) {
	f := linked(Field{
		Prefill: []Candidate{{ID: "p0", Prefill: pools.Default().Prefill}},
		Decode:  []Candidate{{ID: "d0", Running: 200, Prefill: pools.Default().Prefill, Step: pools.Default().Step}},
	})
	before := slices.Clone(f.Decode)
	m := DefaultCost()
	if shown := m.Explain(Choice{Demand: Demand{PromptTokens: 8000, OutputTokens: 100}, Field: f}, 2); len(shown) != 2 {
		t.Fatalf("%+v", shown)
	}
	if !slices.Equal(f.Decode, before) {
		t.Errorf("%+v\nwas %+v", f.Decode, before)
	}
}
