package kvstate

import (
	"slices"
	"sync"
	"testing"
)

// What is kept beside tokens are the hashes that are made without, for whatever prompts begin with them.
func TestHashed_IsWhatIsMade(t *testing.T) {
	tokens := make([]uint32, 5000)
	for i := range tokens {
		tokens[i] = uint32(i * 7919)
	}
	kept, one, other := new(Hashed), NewSeed("one"), NewSeed("other")
	ask := func(seed *Seed, form blockForm, p Prompt) {
		t.Helper()
		var want, got Hits
		want.addChain(&p, seed, form)
		p.Hashed = kept
		if got.addChain(&p, seed, form); !slices.Equal(got.chainOf(form), want.chainOf(form)) {
			t.Errorf("%d tokens of %q, adapter %q, salt %q, %+v: other hashes", len(p.Tokens), p.Model, p.Adapter, p.Salt, form)
		}
	}
	for range 2 {
		for _, seed := range []*Seed{one, other} {
			for _, form := range []blockForm{{16, 0}, {64, 0}, {16, 1}} {
				for _, n := range []int{0, 15, 1000, 5000, 4999, 16} {
					ask(seed, form, Prompt{Model: "m", Tokens: tokens[:n]})
					ask(seed, form, Prompt{Model: "m", Adapter: "a", Tokens: tokens[:n]})
					ask(seed, form, Prompt{Model: "m", Salt: "a", Tokens: tokens[:n]})
					ask(seed, form, Prompt{Model: "n", Tokens: tokens[:n], Media: []Medium{{Hash: "x", Offset: 3, Length: 9}}})
				}
			}
		}
	}
	with := chainKey{one.mark, blockForm{16, 0}, "m", "", ""}
	ask(one, blockForm{16, 0}, Prompt{Model: "m", Tokens: tokens})
	ask(one, blockForm{16, 0}, Prompt{Model: "m", Salt: "b", Tokens: tokens})
	ask(one, blockForm{16, 0}, Prompt{Model: "m", Tokens: tokens[:100]})
	if made := kept.find(&with); len(made) != 5000/16 {
		t.Errorf("%d hashes are kept of what was asked for last but one", len(made))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for n := range 50 {
				p := Prompt{Model: "m", Tokens: tokens[:100*n], Hashed: kept}
				if got := kept.chain(&p, one, blockForm{16, 0}); len(got) != 100*n/16 {
					t.Errorf("%d hashes of %d tokens", len(got), 100*n)
				}
			}
		})
	}
	all.Wait()
}
