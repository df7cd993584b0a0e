package pd

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/senttext"
)

// siblings are prompts with a long beginning in common that no server holds.
func siblings(n int) (prompts [][]uint32) {
	shared := testPrompt(20_000)
	for i := range n {
		prompts = append(prompts, slices.Concat(shared, testPrompt(300+i)))
	}
	return prompts
}

// distinct is on how many servers the beginning is computed.
func distinct(servers []string) int {
	return len(slices.Compact(slices.Sorted(slices.Values(servers))))
}

// Requests that come at once with one long beginning go where the first of them computes it.
func TestBindNow_SiblingsGoWhereTheirPrefixIsBeingComputed(t *testing.T) {
	f := newTestFleet(t, 4, testPrompt(64))
	var servers []string
	for _, prompt := range siblings(16) {
		b, err := f.Binder.bindNow(&f.arrives(prompt, time.Now()).bind)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.release)
		servers = append(servers, b.chosen.Prefill)
	}
	if n := distinct(servers); n > 2 {
		t.Errorf("16 siblings compute their beginning on %d servers: %v", n, servers)
	}
}

// The tokens of some of them are not known in time. They go by their text to where the others
// are computed, and the others to where they are.
func TestBindNow_SiblingsKnownByTextGoWhereOthersAreComputed(t *testing.T) {
	for _, textFirst := range []bool{true, false} {
		f := newTestFleet(t, 4, testPrompt(64))
		text := chunksOf("shared", 20_000/senttext.ChunkTokens)
		var servers []string
		for i, prompt := range siblings(16) {
			st := f.arrives(prompt, time.Now())
			if (i%2 == 0) == textFirst {
				st.bind.prefix.tokens = tokens.Tokens{Chunks: text, Mode: tokens.Engine}
			} else {
				st.bind.prefix.text = text
			}
			b, err := f.Binder.bindNow(&st.bind)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.release)
			servers = append(servers, b.chosen.Prefill)
		}
		if n := distinct(servers); n > 2 {
			t.Errorf("text first %t: 16 siblings compute their beginning on %d servers: %v", textFirst, n, servers)
		}
	}
}

// What was predicted of a server that failed is withdrawn: no request waits for it there.
func TestBindNow_AFailedPrefillIsNotWaitedFor(t *testing.T) {
	f := newTestFleet(t, 4, testPrompt(64))
	prompts := siblings(2)
	first, err := f.Binder.bindNow(&f.arrives(prompts[0], time.Now()).bind)
	if err != nil {
		t.Fatal(err)
	}
	held := func() int {
		r := &f.arrives(prompts[1], time.Now()).bind
		v := f.Binder.snapshotFor(r, nil, time.Now())
		for _, c := range v.candidates.Prefill {
			if c.ID == first.chosen.Prefill {
				return c.Cached.GPU
			}
		}
		return -1
	}
	if n := held(); n != 20_000 {
		t.Errorf("while it is computed %d tokens of the beginning count", n)
	}
	first.undo()
	if n := held(); n != 0 {
		t.Errorf("when it has failed %d tokens count", n)
	}
}

// Those that wait together are bound in one look: each after the first is to see what that
// one's server will hold, by its tokens and where none are known by its text.
func TestDecider_SiblingsGoWhereTheirPrefixIsBeingComputed(t *testing.T) {
	for name, byText := range map[string]bool{"tokens are known": false, "text is known": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testSiblingsWaitTogether(t, byText) }) })
	}
}

func testSiblingsWaitTogether(t *testing.T, byText bool) {
	f := newTestFleet(t, 4, testPrompt(64))
	d := newTestDecider(f)
	var waiting []*waiter
	for i, prompt := range siblings(16) {
		w := f.waits(d, prompt, testModel)
		if byText {
			text := slices.Concat(chunksOf("shared", 20_000/senttext.ChunkTokens), chunksOf(strings.Repeat("own", i+1), 5))
			w.request.prefix.tokens, w.request.prefix.known = tokens.Tokens{Chunks: text, Mode: tokens.Engine}, false
		}
		waiting = append(waiting, w)
	}
	var servers []string
	for deadline := time.Now().Add(time.Minute); len(servers) < len(waiting) && time.Now().Before(deadline); {
		again := d.decide()
		for _, w := range waiting {
			select {
			case g := <-w.done:
				if g.err != nil {
					t.Fatal(g.err)
				}
				servers = append(servers, g.b.chosen.Prefill)
				time.AfterFunc(g.b.chosen.Terms.Queue+g.b.chosen.Terms.Prefill, g.b.release)
			default:
			}
		}
		time.Sleep(max(again, time.Millisecond))
	}
	if n := distinct(servers); n > 2 || len(servers) < len(waiting) {
		t.Errorf("%d siblings compute their beginning on %d servers: %v", len(servers), n, servers)
	}
}

// A request that comes when its sibling has its servers, and has not gone on with them yet, finds that its beginning is
// being computed there.
func TestDecider_WhatIsPredictedCountsBeforeItsRequestGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTestFleet(t, 4, testPrompt(64))
		d := newTestDecider(f)
		prompts := siblings(2)
		first := f.waits(d, prompts[0], testModel)
		d.decide()
		g := <-first.done
		if g.err != nil {
			t.Fatal(g.err)
		}
		defer g.b.undo()
		second := f.waits(d, prompts[1], testModel)
		d.decide()
		held := f.Binder.Locality.cachedTokens(second.request.prefix, len(prompts[1]), g.b.prefill.Server(), &serverFacts{})
		if held.Pending < 19_000 {
			t.Errorf("of 20,000 tokens it finds %+v on its sibling's server", held)
		}
		if len(second.done) > 0 {
			(<-second.done).b.undo()
		}
	})
}

// chunksOf are n chunks of one text.
func chunksOf(text string, n int) (all []tokens.Chunk) {
	var c tokens.Chunk
	for i := range n {
		c = tokens.Chunk(uint64(len(text))<<32 | uint64(i+1))
		all = append(all, c)
	}
	return all
}
