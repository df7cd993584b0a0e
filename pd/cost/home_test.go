package cost

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// What a client says of its session never changes a choice by more than the margin: where it
// makes another one, that costs as much but for the margin, misses no more, waits no longer, and
// is one of the session's servers.
func TestHome_BreaksTiesAndNothingElse(t *testing.T) {
	changed := 0
	rapid.Check(t, func(t *rapid.T) {
		f, m := randomField(t), Default()
		if rapid.Bool().Draw(t, "alike") { // ties are rare among unlike servers
			for _, list := range [][]Candidate{f.Prefill, f.Decode} {
				for i := range list {
					list[i].Running, list[i].Ready, list[i].KVKnown = list[0].Running, list[0].Ready, false
					list[i].NoPair, list[i].Group, list[i].Topology = false, 0, Topology{}
					list[i].Queue = time.Duration(rapid.IntRange(0, 8).Draw(t, "ahead")) * time.Millisecond
					n := 16 * rapid.IntRange(0, 40).Draw(t, "cached")
					list[i].Cached = cached.Tokens{GPU: n, CPU: n, Disk: n}
				}
			}
		}
		r := Demand{PromptTokens: rapid.IntRange(0, 10_000).Draw(t, "prompt"), OutputTokens: rapid.IntRange(1, 2000).Draw(t, "output")}
		r.TTFT = time.Duration(rapid.IntRange(0, 300).Draw(t, "ttft")) * time.Millisecond
		first := func(int) int { return 0 }
		without, ok := m.Choose(r, &f, first)
		name := func(of string, list []Candidate) string {
			if len(list) == 0 || rapid.IntRange(0, 4).Draw(t, of) == 0 {
				return rapid.SampledFrom([]string{"", "gone"}).Draw(t, of+" elsewhere")
			}
			return list[rapid.IntRange(0, len(list)-1).Draw(t, of+" at")].ID
		}
		r.Home = Home{name("prefill", f.Prefill), name("decode", f.Decode)}
		with, also := m.Choose(r, &f, first)
		if ok != also {
			t.Fatalf("chosen without: %v, with: %v", ok, also)
		}
		if with == without {
			return
		}
		changed++
		margin := TieMargin(&without)
		if margin > mostTie || margin > without.Terms.Total()/20+1 {
			t.Fatalf("a margin of %v on %v", margin, without.Terms.Total())
		}
		if off := (with.Terms.Total() - without.Terms.Total()).Abs(); off > margin || with.Misses > without.Misses || with.Terms.Queue > without.Terms.Queue+margin {
			t.Fatalf("%+v\nrather than %+v: %v off", with, without, off)
		}
		if with.Prefill != r.Home.Prefill && with.Decode != r.Home.Decode {
			t.Fatalf("%+v is not at home, %+v", with, r.Home)
		}
	})
	if changed == 0 {
		t.Error("no tie was ever broken")
	}
}
