package kvstate

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// ahead stores blocks of 16 tokens of a prompt under hashes that cover so many tokens behind each,
// as far as these are known.
func ahead(prompt []uint32, lookahead int) wireEvent {
	n := (len(prompt) - lookahead) / 16
	e := wireEvent{kind: "BlockStored", tokens: prompt[:16*n], size: 16, medium: "GPU", behind: prompt[16*n : 16*n+lookahead]}
	for i := range n {
		e.hashes = append(e.hashes, uint64(i+1))
	}
	return e
}

// Where an engine's hash of a block covers the token behind it, a prompt that parts there does not
// have the block, and one that ends there neither.
func TestLookahead_APromptThatPartsBehindABlock(t *testing.T) {
	stored := count(0, 50)
	parts := func(at int) []uint32 {
		tokens := count(0, 80)
		for i := at; i < len(tokens); i++ {
			tokens[i] += 1000
		}
		return tokens
	}
	ix, s := opened(t, Spec{BlockTokens: 16})
	s.ApplyLive(Message{Payload: wireBatch(wireForm{maps: true}, 1, ahead(stored, 1))})
	for _, x := range []struct {
		name   string
		tokens []uint32
		want   int
	}{
		{"the same", stored, 48},
		{"it goes on", count(0, 80), 48},
		{"it ends with the third block", stored[:48], 32},
		{"it ends one token behind it", stored[:49], 48},
		{"it parts behind the third block", parts(48), 32},
		{"it parts one token later", parts(49), 48},
		{"it parts within the third block", parts(40), 32},
		{"it parts behind the second block", parts(32), 16},
		{"it parts behind the first block", parts(16), 0},
		{"another", parts(0), 0},
		{"nothing", nil, 0},
	} {
		if got := holds(ix, Prompt{Tokens: x.tokens}); got != x.want {
			t.Errorf("%s: %d tokens held, want %d", x.name, got, x.want)
		}
	}
}

// What is stored behind a block follows it, with salt and adapter; replicas that follow by deltas
// or snapshots, or have the hashes of a prompt alone, find the same.
func TestLookahead_IsToldOn(t *testing.T) {
	prompt := Prompt{Model: "m", Adapter: "a", Salt: "x", Tokens: count(0, 70)}
	ix, s := opened(t, Spec{})
	s.Record(true)
	whole := ahead(prompt.Tokens, 3)
	head, tail := whole, whole
	head.hashes, head.tokens, head.behind = whole.hashes[:2], prompt.Tokens[:32], prompt.Tokens[32:35]
	tail.hashes, tail.tokens, tail.parent = whole.hashes[2:], prompt.Tokens[32:64], 2
	head.adapter, tail.adapter, head.extra = "a", "a", [][]string{{"a", "x"}, {"a"}}
	s.ApplyLive(Message{Payload: wireBatch(wireForm{maps: true}, 1, head, tail)})

	other, follower := opened(t, Spec{})
	third, late := opened(t, Spec{})
	if err := follower.Apply(s.TakeDelta()); err != nil {
		t.Fatal(err)
	}
	if err := late.Apply(s.Snapshot()); err != nil {
		t.Fatal(err)
	}
	for name, index := range map[string]*Index{"received": ix, "by a delta": other, "by a snapshot": third} {
		if got := holds(index, prompt); got != 64 {
			t.Errorf("%s: %d tokens held", name, got)
		}
		for _, foreign := range []Prompt{{Tokens: prompt.Tokens, Adapter: "a"}, {Tokens: prompt.Tokens, Salt: "x"}} {
			if got := holds(index, foreign); got != 0 {
				t.Errorf("%s: %d tokens held of another's prompt", name, got)
			}
		}
		var by, here Hits
		ix.Match(&prompt, &here)
		index.MatchChains("m", len(prompt.Tokens), here.Chains(), &by)
		if got := by.Held("s").GPU; got != 64 {
			t.Errorf("%s: %d tokens held by hashes alone", name, got)
		}
	}
	s.ApplyLive(Message{Seq: 1, Payload: wireBatch(wireForm{maps: true}, 1, wireEvent{kind: "BlockRemoved", hashes: []uint64{4}, medium: "GPU"})})
	if err := follower.Apply(s.TakeDelta()); err != nil {
		t.Fatal(err)
	}
	if here, there := holds(ix, prompt), holds(other, prompt); here != 48 || there != 48 {
		t.Errorf("%d and %d tokens are left of 48", here, there)
	}
}

// An image behind a block is looked at too.
func TestLookahead_OfAnImage(t *testing.T) {
	ix, s := opened(t, Spec{})
	e := ahead(count(0, 40), 1)
	e.extra = [][]string{{"image"}, {"image"}}
	s.ApplyLive(Message{Payload: wireBatch(wireForm{maps: true}, 1, e)})
	for hash, want := range map[string]int{"image": 32, "another": 0, "": 0} {
		if got := holds(ix, Prompt{Tokens: count(0, 40), Media: []Medium{{Hash: hash, Offset: 16, Length: 4}}}); got != want {
			t.Errorf("with image %q behind the first block: %d tokens held, want %d", hash, got, want)
		}
	}
}

// A field that cannot be is dropped with its event.
func TestLookahead_OfMoreThanABlock(t *testing.T) {
	for _, lookahead := range []int{9, maxLookahead + 1} {
		ix, s := opened(t, Spec{})
		e := wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 8), size: 8, behind: count(8, lookahead)}
		s.ApplyLive(Message{Payload: wireBatch(wireForm{maps: true}, 1, e)})
		if got, c := holds(ix, Prompt{Tokens: count(0, 40)}), s.State().Counts; got != 0 || c.Dropped[DropMalformed] != 1 {
			t.Errorf("%d tokens behind a block of 8: %d held, dropped %v", lookahead, got, c.Dropped)
		}
	}
}

// A prompt has the blocks that one stored before has, up to where the two differ in a block or in
// what is looked at behind it.
func TestLookahead_IsWhatTheEngineFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lookahead := rapid.IntRange(1, 4).Draw(t, "lookahead")
		draw := func(what string) []uint32 {
			return rapid.SliceOfN(rapid.Uint32Range(0, 1), lookahead, 40).Draw(t, what)
		}
		stored, asked := draw("stored"), draw("asked")
		ix, err := New(Default())
		if err != nil {
			t.Fatal(err)
		}
		s, err := ix.Open(Spec{SourceID: SourceID{Server: "s"}, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		n, want := (len(stored)-lookahead)/4, 0
		e := wireEvent{kind: "BlockStored", tokens: stored[:4*n], size: 4, behind: stored[4*n : 4*n+lookahead]}
		for i := range n {
			e.hashes = append(e.hashes, uint64(i+1))
		}
		if n > 0 {
			s.ApplyLive(Message{Payload: wireBatch(wireForm{maps: true}, 1, e)})
		}
		for i := range n {
			end := 4*(i+1) + lookahead
			if end > len(asked) || !slices.Equal(asked[:end], stored[:end]) {
				break
			}
			want = 4 * (i + 1)
		}
		if got := holds(ix, Prompt{Tokens: asked}); got != want {
			t.Fatalf("%d tokens held, want %d", got, want)
		}
	})
}
