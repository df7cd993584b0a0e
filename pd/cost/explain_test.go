package cost

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// However many pairs are cheaper, people see what decode alone would have cost.
func TestExplain_ShowsTheChosenAndTheCheapestAlone(t *testing.T) {
	f := Candidates{
		Prefill: []Candidate{{ID: "p0"}, {ID: "p1"}, {ID: "p2"}},
		Decode:  []Candidate{{ID: "d0", Running: 200}, {ID: "d1", Running: 100}},
	}
	for _, servers := range [][]Candidate{f.Prefill, f.Decode} {
		for i := range servers {
			servers[i].Prefill, servers[i].Step = pools.Default().Prefill, pools.Default().Step
		}
	}
	f = linked(f)
	m, r := Default(), Demand{PromptTokens: 8000, OutputTokens: 100}
	chosen, ok := m.Choose(r, &f, rand.New(rand.NewPCG(1, 1)).IntN)
	if !ok || chosen.Prefill == "" {
		t.Fatalf("chosen: %+v", chosen)
	}
	shown := m.Explain(r, f, chosen, 2)
	marked, alone := 0, ""
	for _, e := range shown {
		if e.Chosen {
			marked++
		}
		if e.Prefill == "" {
			alone += e.Decode
		}
		first := e.Ready + e.Queue + e.Compute + e.Transfer + e.KVRoom + e.Step
		if math.Abs(first-e.First) > 0.01 || math.Abs(first+e.DecodeCost+e.DelayToOthers+e.HardwareMismatch+e.Eviction-e.Total) > 0.01 {
			t.Errorf("the terms do not add up: %+v", e)
		}
		if want := float64(8000 * assumedKVBytes); e.Prefill != "" && e.Moved != want || e.Prefill == "" && e.Moved != 0 {
			t.Errorf("%+v moves %v bytes", e, e.Moved)
		}
	}
	if marked != 1 || alone != "d1" {
		t.Errorf("%d are marked, alone is shown: %q of %+v", marked, alone, shown)
	}
}

// Several people may ask about one decision at a time: explaining it leaves it as it is.
func TestExplain_ChangesNothingOfTheDecision(t *testing.T) {
	f := linked(Candidates{
		Prefill: []Candidate{{ID: "p0", Prefill: pools.Default().Prefill}},
		Decode:  []Candidate{{ID: "d0", Running: 200, Prefill: pools.Default().Prefill, Step: pools.Default().Step}},
	})
	before := slices.Clone(f.Decode)
	m := Default()
	if shown := m.Explain(Demand{PromptTokens: 8000, OutputTokens: 100}, f, Alternative{}, 2); len(shown) != 2 {
		t.Fatalf("%+v", shown)
	}
	if !slices.Equal(f.Decode, before) {
		t.Errorf("%+v\nwas %+v", f.Decode, before)
	}
}

// Alternatives that cost the same are shown in the order of the fleet, and no more of them
// than asked for beside the chosen one and decode alone.
func TestExplain_EqualAlternativesInTheOrderOfTheFleet(t *testing.T) {
	f := Candidates{}
	for _, id := range []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6"} {
		f.Prefill = append(f.Prefill, Candidate{ID: id, Prefill: pools.Default().Prefill})
	}
	for _, id := range []string{"d0", "d1", "d2"} {
		f.Decode = append(f.Decode, Candidate{ID: id, NoAggregated: true, Step: pools.Default().Step})
	}
	f = linked(f)
	m, r := Default(), Demand{PromptTokens: 8000, OutputTokens: 100}
	for limit, want := range map[int]int{1: 2, 3: 4, 20: 21, 100: 21} {
		shown := m.Explain(r, f, Alternative{Prefill: "p6", Decode: "d2"}, limit)
		if len(shown) != want {
			t.Errorf("at most %d beside the chosen one: %d are shown", limit, len(shown))
		}
		for i, e := range shown[:len(shown)-1] {
			if e.Prefill != f.Prefill[i/3].ID || e.Decode != f.Decode[i%3].ID {
				t.Errorf("alternative %d is %s %s", i, e.Prefill, e.Decode)
			}
		}
	}
}
