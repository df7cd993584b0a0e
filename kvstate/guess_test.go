package kvstate

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

func TestGuess_BesideWhatIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix, s := opened(t, Spec{})
		s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU"})})
		p := Prompt{Model: "m", Tokens: count(0, 100)}
		var h Hits
		match := func() cached.Tokens { ix.Match(&p, &h); return h.Held("s") }
		want := func(when string, gpu, guessed int) {
			t.Helper()
			if got := match(); got.Confirmed() != gpu || got.GPU != guessed {
				t.Errorf("%s: %+v, want %d confirmed and %d with guesses", when, got, gpu, guessed)
			}
		}
		want("before", 32, 32)
		first := ix.Guess("s", &h, 0)
		want("guessed", 32, 96)
		match()
		second := ix.Guess("s", &h, 0)
		first.Withdraw()
		first.Withdraw()
		want("one of two withdrawn", 32, 96)
		second.Withdraw()
		want("both withdrawn", 32, 32)

		match()
		ix.Guess("s", &h, 0)
		s.ApplyLive(Message{Seq: 1, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{3}, parent: 2, tokens: count(32, 16), size: 16, medium: "GPU"})})
		want("partly confirmed", 48, 96)
		s.ApplyLive(Message{Seq: 2, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockRemoved", hashes: []uint64{2, 3}, medium: "GPU"})})
		want("some removed that was not guessed", 16, 16)
		time.Sleep(ix.cfg.GuessLife + time.Millisecond)
		synctest.Wait()
		want("its time is over", 16, 16)
		if n := ix.Models()[0].Guesses.Blocks; n != 0 {
			t.Errorf("%d blocks guessed for ever", n)
		}
	})
}

// Each guess lives for its own time: those that stand behind the first one go when theirs is
// over, and one that comes when none is left goes too.
func TestGuess_EachExpiresAtItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix, _ := opened(t, Spec{BlockTokens: 16})
		life := ix.cfg.GuessLife
		start := time.Now()
		guess := func(after time.Duration, from int) {
			time.Sleep(time.Until(start.Add(after)))
			p := Prompt{Model: "m", Tokens: count(from, 32)}
			var h Hits
			ix.Match(&p, &h)
			ix.Guess("s", &h, 0)
		}
		want := func(after time.Duration, blocks int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(after)))
			synctest.Wait()
			if n := ix.Models()[0].Guesses.Blocks; n != blocks {
				t.Errorf("after %v %d blocks are guessed, want %d", after, n, blocks)
			}
		}
		second, third := life/4, life/2
		guess(0, 0)
		guess(second, 1000)
		guess(third, 2000)
		want(life-time.Millisecond, 6)
		want(life+time.Millisecond, 4)
		want(second+life-time.Millisecond, 4)
		want(second+life+time.Millisecond, 2)
		want(third+life-time.Millisecond, 2)
		want(third+life+time.Millisecond, 0)
		guess(3*life, 3000)
		want(4*life-time.Millisecond, 2)
		want(4*life+time.Millisecond, 0)
	})
}

// What a server has computed and evicted since is not believed to be held any longer than its events
// may take, though the guess was to live for longer; another that is still to come true lives on,
// and one that ends sooner is not prolonged.
func TestGuess_EndsSoonAfterItWasComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix, s := opened(t, Spec{BlockTokens: 16})
		p, q := Prompt{Model: "m", Tokens: count(0, 64)}, Prompt{Model: "m", Tokens: count(500, 32)}
		var h Hits
		match := func(p *Prompt) cached.Tokens { ix.Match(p, &h); return h.Held("s") }
		match(&q)
		ix.Guess("s", &h, time.Second)
		match(&p)
		guess := ix.Guess("s", &h, 2*time.Second)
		s.ApplyLive(Message{Seq: 0, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1, 2, 3, 4}, tokens: count(0, 64), size: 16, medium: "GPU"})})
		guess.Computed()
		s.ApplyLive(Message{Seq: 1, Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockRemoved", hashes: []uint64{3, 4}, medium: "GPU"})})
		time.Sleep(eventsTake - time.Millisecond)
		if got := match(&p); got.Confirmed() != 32 || got.GPU != 64 {
			t.Errorf("while its events may be on their way: %+v", got)
		}
		guess.Computed() // once more, which prolongs nothing
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if got := match(&p); got.Confirmed() != 32 || got.GPU != 32 {
			t.Errorf("computed, and evicted since: %+v", got)
		}
		if got := match(&q); got.GPU != 32 {
			t.Errorf("of the other, which is to come true: %+v", got)
		}
		guess.Computed()
		guess.Withdraw()
		time.Sleep(ix.cfg.GuessLife)
		synctest.Wait()
		if n := ix.Models()[0].Guesses.Blocks; n != 0 {
			t.Errorf("%d blocks guessed for ever", n)
		}
	})
}

func TestGuess_Counted(t *testing.T) {
	cfg := Default()
	cfg.CountGuesses, cfg.MaxGuesses = true, 10
	ix, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: "m", BlockTokens: 16}); err != nil {
			t.Fatal(err)
		}
	}
	p := Prompt{Model: "m", Tokens: count(0, 128)}
	var h Hits
	ix.Match(&p, &h)
	ix.Guess("s0", &h, 0)
	ix.Guess("nobody", &h, 0).Withdraw()
	if ix.Match(&p, &h); h.Held("s0") != (cached.Tokens{GPU: 128, CPU: 128, Disk: 128, Pending: 128}) || h.Held("s1") != (cached.Tokens{}) {
		t.Errorf("%+v and %+v", h.Held("s0"), h.Held("s1"))
	}
	// There is room for ten blocks: the older guess goes.
	q := Prompt{Model: "m", Tokens: count(500, 64)}
	ix.Match(&q, &h)
	ix.Guess("s1", &h, 0)
	if ix.Match(&p, &h); h.Held("s0").GPU != 0 {
		t.Errorf("%d tokens", h.Held("s0").GPU)
	}
	if ix.Match(&q, &h); h.Held("s1").GPU != 64 {
		t.Errorf("%d tokens", h.Held("s1").GPU)
	}
}

// BenchmarkGuess: a prompt of 1,000 blocks of which 500 are missing, guessed and withdrawn.
// Budget: 150 us.
func BenchmarkGuess(b *testing.B) {
	ix, _ := opened(b, Spec{BlockTokens: 16})
	p := Prompt{Model: "m", Tokens: count(0, 8000)}
	var h Hits
	ix.Match(&p, &h)
	b.ReportAllocs()
	for b.Loop() {
		ix.Guess("s", &h, 0).Withdraw()
	}
}

// What was guessed of a server that leaves leaves with it: one that comes again under its name holds
// nothing. What was guessed of others stays.
func TestGuess_LeavesWithItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix, s := opened(t, Spec{BlockTokens: 16})
		other, err := ix.Open(Spec{SourceID: SourceID{Server: "other"}, Model: "m", BlockTokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		for _, each := range []*Source{s, other} {
			each.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16, medium: "GPU"})})
		}
		p := Prompt{Model: "m", Tokens: count(0, 96)}
		var h Hits
		ix.Match(&p, &h)
		ix.Guess("s", &h, time.Minute)
		ix.Guess("other", &h, time.Minute)
		s.Close()
		again, err := ix.Open(Spec{SourceID: SourceID{Server: "s"}, Model: "m", BlockTokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		again.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, 16), size: 16, medium: "GPU"})})
		ix.Match(&p, &h)
		if here, there := h.Held("s").GPU, h.Held("other").GPU; here != 16 || there != 96 {
			t.Errorf("of the server that came again %d tokens count, of the other %d", here, there)
		}
	})
}

// One prompt extends what another is known to find on a server where it shares the next block, and no
// further: it has to be of the same model, and longer there than what is held.
func TestHits_ExtendsByTheNextBlockThatIsShared(t *testing.T) {
	ix, s := opened(t, Spec{BlockTokens: 16})
	s.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU"})})
	match := func(model string, tokens []uint32) *Hits {
		var h Hits
		ix.Match(&Prompt{Model: model, Tokens: tokens}, &h)
		return &h
	}
	own := match("m", count(0, 96))
	for name, c := range map[string]struct {
		h, by  *Hits
		server string
		want   bool
	}{
		"the same prompt":              {own, match("m", count(0, 96)), "s", true},
		"one that shares a block more": {own, match("m", count(0, 48)), "s", true},
		"one that shares what is held": {own, match("m", count(0, 32)), "s", false},
		"one that differs behind it":   {own, match("m", append(count(0, 32), count(500, 64)...)), "s", false},
		"one that is held whole":       {match("m", count(0, 32)), own, "s", false},
		"of a server that is not here": {own, match("m", count(0, 96)), "t", false},
		"of another model":             {own, match("n", count(0, 96)), "s", false},
		"of which nothing is known":    {&Hits{}, &Hits{}, "s", false},
		"of a model that is not here":  {match("n", count(0, 96)), match("n", count(0, 96)), "s", false},
	} {
		if got := c.h.Extends(c.server, new(HitPosition), c.by); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	ix.Guess("s", match("m", count(0, 64)), time.Minute) // then the two blocks behind are to be held as well
	if ix.Rematch(own); own.Extends("s", new(HitPosition), match("m", count(0, 64))) || !own.Extends("s", new(HitPosition), match("m", count(0, 80))) {
		t.Error("what is guessed does not count as held")
	}
}

// A match is repeated with the hashes that it has, until a server with blocks of another size has come.
func TestIndex_RematchUntilABlockSizeComes(t *testing.T) {
	ix, s := opened(t, Spec{BlockTokens: 16})
	store := func(to *Source, size int) {
		to.ApplyLive(Message{Payload: wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1}, tokens: count(0, size), size: size, medium: "GPU"})})
	}
	p := Prompt{Model: "m", Tokens: count(0, 96)}
	var h Hits
	if ix.Rematch(&h) {
		t.Error("what is no match is repeated")
	}
	ix.Match(&p, &h)
	store(s, 16)
	if !ix.Rematch(&h) || h.Held("s").GPU != 16 {
		t.Errorf("repeated, %d tokens are held", h.Held("s").GPU)
	}
	other, err := ix.Open(Spec{SourceID: SourceID{Server: "o"}, Model: "m", BlockTokens: 32})
	if err != nil {
		t.Fatal(err)
	}
	store(other, 32)
	if ix.Rematch(&h) {
		t.Error("it is repeated without the hashes of the other size")
	}
}

// The bounds of an index are positive, and an index without them is none.
func TestConfig_ValidateRefusesWhatBoundsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   bool
	}{
		"the default":    {func(*Config) {}, true},
		"the fewest":     {func(c *Config) { c.MaxBlocks, c.GuessLife, c.MaxGuesses = 1024, 1, 1 }, true},
		"too few blocks": {func(c *Config) { c.MaxBlocks = 1023 }, false},
		"no life":        {func(c *Config) { c.GuessLife = 0 }, false},
		"no guesses":     {func(c *Config) { c.MaxGuesses = 0 }, false},
		"less than none": {func(c *Config) { c.MaxGuesses = -1 }, false},
	} {
		cfg := Default()
		c.change(&cfg)
		err := cfg.Validate()
		ix, failed := New(cfg)
		if (err == nil) != c.want || (failed == nil) != c.want || (ix != nil) != c.want {
			t.Errorf("%s: %v, an index %v, %v", name, err, ix != nil, failed)
		}
	}
}
