package cost

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pools"
)

// grid is two prefill and two decode servers of unlike load and place: each pair costs
// something else.
func grid() Candidates {
	server := func(id, rack string, queue time.Duration, running int) Candidate {
		return Candidate{
			ID: id, Topology: Topology{Rack: rack}, Queue: queue, Running: running,
			Prefill: pools.Default().Prefill, Step: pools.Default().Step,
		}
	}
	return linked(Candidates{
		Prefill: []Candidate{server("p0", "r1", 10*time.Millisecond, 0), server("p1", "r2", 0, 0)},
		Decode:  []Candidate{server("d0", "r1", 0, 3), server("d1", "r2", 0, 5)},
	})
}

// A pair costs by itself what it costs among all alternatives.
func TestBetween_IsTheSameAsAmongAllAlternatives(t *testing.T) {
	m, f, r := Default(), grid(), Demand{PromptTokens: 4000, OutputTokens: 256}
	chosen, ok := m.Choose(r, &f, rand.New(rand.NewPCG(1, 1)).IntN)
	if !ok {
		t.Fatal("nothing is chosen")
	}
	all := m.Alternatives(r, &f, chosen.Price)
	if len(all) != 6 {
		t.Fatalf("%d alternatives", len(all))
	}
	for _, want := range all {
		if got, ok := m.PricePair(r, &f, want.Prefill, want.Decode); !ok || got != want {
			t.Errorf("%+v, %v\nwant %+v", got, ok, want)
		}
	}
}

// A pair of servers that are gone, or of which one may not be chosen, is none.
func TestBetween_NoPairOfServersThatAreGoneOrOut(t *testing.T) {
	m, f, r := Default(), grid(), Demand{PromptTokens: 4000, OutputTokens: 256}
	f.Prefill[1].Excluded, f.Decode[1].NoAggregated = true, true
	for name, c := range map[string]struct {
		prefill, decode string
		possible        bool
	}{
		"both are here":                    {"p0", "d0", true},
		"decode alone":                     {"", "d0", true},
		"prefill is gone":                  {"p9", "d0", false},
		"decode is gone":                   {"p0", "d9", false},
		"decode, which was alone, is gone": {"", "d9", false},
		"prefill is out":                   {"p1", "d0", false},
		"decode must not run alone":        {"", "d1", false},
	} {
		a, ok := m.PricePair(r, &f, c.prefill, c.decode)
		if ok != c.possible || ok && (a.Prefill != c.prefill || a.Decode != c.decode) {
			t.Errorf("%s: %+v, %v", name, a, ok)
		}
	}
}

// Where a pair is given, the choice has nothing else left, and it costs there what it did.
func TestOnly_LeavesThePairAndItsLink(t *testing.T) {
	m, r, tie := Default(), Demand{PromptTokens: 4000, OutputTokens: 256}, rand.New(rand.NewPCG(1, 1)).IntN
	for _, c := range []struct {
		prefill, decode string
		prefills        int
	}{{"p0", "d0", 1}, {"p0", "d1", 1}, {"p1", "d0", 1}, {"p1", "d1", 1}, {"", "d0", 0}, {"", "d1", 0}} {
		f := grid()
		for i := range f.Decode {
			f.Decode[i].NoAggregated = c.prefill != ""
		}
		want, _ := m.PricePair(r, &f, c.prefill, c.decode)
		one := f.Only(c.prefill, c.decode)
		if len(one.Prefill) != c.prefills || len(one.Decode) != 1 {
			t.Fatalf("%q %q: %d and %d servers are left", c.prefill, c.decode, len(one.Prefill), len(one.Decode))
		}
		got, ok := m.Choose(r, &one, tie)
		if !ok || got.Prefill != c.prefill || got.Decode != c.decode || got.Terms.Transfer != want.Terms.Transfer || got.Terms.Queue != want.Terms.Queue {
			t.Errorf("%+v, %v\nwant %+v", got, ok, want)
		}
		one.Decode[0].Running = 99
		if i := IndexOf(f.Decode, c.decode); f.Decode[i].Running == 99 {
			t.Errorf("%q %q: what was left is not a copy", c.prefill, c.decode)
		}
	}
	f := grid()
	if one := f.Only("p0", "d9"); len(one.Prefill) != 1 || len(one.Decode) != 0 {
		t.Errorf("of a pair whose decode server is gone %d and %d are left", len(one.Prefill), len(one.Decode))
	}
}

func TestIndexOf_IsTheServersNumber(t *testing.T) {
	f := grid()
	for id, want := range map[string]int{"d0": 0, "d1": 1, "p0": -1, "": -1} {
		if got := IndexOf(f.Decode, id); got != want {
			t.Errorf("%q: %d, want %d", id, got, want)
		}
	}
}

// A prefix is pulled from the server that holds more of it, where that is faster than to
// compute it; nothing is pulled that is here already.
func TestPullSource_OnlyWherePullingIsFaster(t *testing.T) {
	m := Default()
	fast := Remote{Server: "holder", Tokens: 7680, Latency: 0.0005, PerByte: 1 / 12.5e9}
	slow := Remote{Server: "holder", Tokens: 7680, Latency: 10, PerByte: 1 / 12.5e9}
	free := Remote{Server: "holder", Tokens: 7680}
	server := func(id string, held int, remote Remote) Candidate {
		return Candidate{ID: id, Prefill: pools.Default().Prefill, Cached: cached.Tokens{GPU: held, CPU: held, Disk: held}, Remote: remote}
	}
	candidates := []Candidate{
		server("cold", 0, fast), server("slow", 0, slow), server("nobody", 0, Remote{}),
		server("as-much", 7680, free), server("more", 7900, free),
	}
	for id, want := range map[string]string{"cold": "holder", "slow": "", "nobody": "", "as-much": "", "more": "", "gone": ""} {
		if got := m.PullSource(candidates, id, 8000); got != want {
			t.Errorf("%s pulls from %q, want %q", id, got, want)
		}
	}
}

// No rule is the joint one.
func TestChoose_WithoutRuleIsJoint(t *testing.T) {
	f, r, m := grid(), Demand{PromptTokens: 4000, OutputTokens: 256}, Default()
	joint, _ := m.Choose(r, &f, rand.New(rand.NewPCG(1, 1)).IntN)
	m.Rule = ""
	for seed := range uint64(20) {
		if got, ok := m.Choose(r, &f, rand.New(rand.NewPCG(seed, 1)).IntN); !ok || got != joint {
			t.Fatalf("%+v, want %+v", got, joint)
		}
	}
}

// A random pair may be any that is possible, and each as often.
func TestChoose_RandomPairsShare(t *testing.T) {
	f, r, m := grid(), Demand{PromptTokens: 4000, OutputTokens: 256}, Default()
	m.Rule = Random
	tie, counts := rand.New(rand.NewPCG(1, 1)).IntN, map[string]int{}
	for range 4000 {
		a, _ := m.Choose(r, &f, tie)
		counts[a.Prefill+a.Decode]++
	}
	for _, pair := range []string{"p0d0", "p0d1", "p1d0", "p1d1"} {
		if counts[pair] < 900 || counts[pair] > 1100 {
			t.Errorf("%s got %d of 4000: %v", pair, counts[pair], counts)
		}
	}
}

// A server that can take the request at once is not written down as one that cannot: the
// list is empty for most requests.
func TestPrice_ReadyServersAreNotListed(t *testing.T) {
	f, m := grid(), Default()
	f.Decode[1].Ready = time.Second
	var w pricing
	w.put(&m, Demand{PromptTokens: 4000, OutputTokens: 256}, &f)
	if len(w.ticket.PrefillReady) != 0 {
		t.Errorf("all prefill servers are ready: %v", w.ticket.PrefillReady)
	}
	if ready := w.ticket.DecodeReady; len(ready) != 2 || ready[0] != 0 || ready[1] != 1 {
		t.Errorf("the second decode server is ready in a second: %v", ready)
	}
}
