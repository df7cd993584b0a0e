package kvstate

import (
	"fmt"
	"math"
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
		first := ix.Guess("s", &h, math.MaxInt, 0)
		want("guessed", 32, 96)
		match()
		second := ix.Guess("s", &h, math.MaxInt, 0)
		first.Withdraw()
		first.Withdraw()
		want("one of two withdrawn", 32, 96)
		second.Withdraw()
		want("both withdrawn", 32, 32)

		match()
		ix.Guess("s", &h, math.MaxInt, 0)
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
			ix.Guess("s", &h, math.MaxInt, 0)
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
	ix.Guess("s0", &h, math.MaxInt, 0)
	ix.Guess("nobody", &h, math.MaxInt, 0).Withdraw()
	if ix.Match(&p, &h); h.Held("s0") != (cached.Tokens{GPU: 128, CPU: 128, Disk: 128, Pending: 128}) || h.Held("s1") != (cached.Tokens{}) {
		t.Errorf("%+v and %+v", h.Held("s0"), h.Held("s1"))
	}
	// There is room for ten blocks: the older guess goes.
	q := Prompt{Model: "m", Tokens: count(500, 64)}
	ix.Match(&q, &h)
	ix.Guess("s1", &h, math.MaxInt, 0)
	if ix.Match(&p, &h); h.Tokens("s0", GPU) != 0 {
		t.Errorf("%d tokens", h.Tokens("s0", GPU))
	}
	if ix.Match(&q, &h); h.Tokens("s1", GPU) != 64 {
		t.Errorf("%d tokens", h.Tokens("s1", GPU))
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
		ix.Guess("s", &h, math.MaxInt, 0).Withdraw()
	}
}
