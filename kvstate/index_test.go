package kvstate

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// TestIndex_ReadersAndWriters: matches go on while sources come, tell, are cleared and go;
// what never changes is always seen whole.
func TestIndex_ReadersAndWriters(t *testing.T) {
	cfg := Default()
	cfg.MaxBlocks = 20_000
	ix, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	prompt := Prompt{Model: "m", Tokens: count(0, 1600)}
	still, err := ix.Open(Spec{SourceID: SourceID{Server: "still"}, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	c := newCache(16, 3)
	c.compute(prompt.Tokens[:800], false)
	seq := uint64(0)
	c.publish(still, wireForm{}, &seq)

	var stop atomic.Bool
	var writers, readers sync.WaitGroup
	for w := range 3 {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for round := range 30 {
				s, err := ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("w", w), Rank: round % 2}, Model: "m"})
				if err != nil {
					t.Error(err)
					return
				}
				c := newCache(16*(1+r.IntN(2)), uint64(w))
				seq := uint64(0)
				for range 20 {
					c.compute(prompt.Tokens[:16*(1+r.IntN(100))], false)
					c.compute(randomTokens(r, 1600), false)
					for _, b := range c.blocks {
						if r.IntN(3) == 0 && b.copies[GPU] > 0 {
							c.evict(b, GPU)
						}
					}
					if r.IntN(10) == 0 {
						c.clear()
					}
					c.publish(s, wireForm{maps: round%2 == 0}, &seq)
				}
				s.Close()
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			var h Hits
			for !stop.Load() {
				ix.Match(&prompt, &h)
				ix.Guess("w1", &h, 0).Withdraw()
				for server := range h.members.servers {
					if held := h.Held(server); held.GPU > 1600 || held.CPU < held.GPU {
						t.Errorf("%s: %+v", server, held)
						return
					}
				}
				if got := h.Held("still").GPU; got != 800 {
					t.Errorf("%d tokens of what never changes, want 800", got)
					return
				}
				ix.Sources()
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	readers.Wait()
	still.checkTree(t)
	if blocks := ix.blocks.Load(); blocks != 50 {
		t.Errorf("%d blocks left of 50", blocks)
	}
}

// TestIndex_Wide: the sets of holders grow while they are in use.
func TestIndex_Wide(t *testing.T) {
	f := newFleet(t, 1)
	p := Prompt{Model: "m", Tokens: count(0, 320)}
	var h Hits
	f.ix.Match(&p, &h)
	chain := append([]Hash(nil), h.hashes...)
	f.hold(0, chain)
	for i := 1; i < 300; i++ {
		s, err := f.ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: "m", BlockTokens: 16})
		if err != nil {
			t.Fatal(err)
		}
		f.sources = append(f.sources, s)
		f.hold(i, chain[:i%21])
	}
	f.ix.Match(&p, &h)
	for i := 1; i < 300; i++ {
		if got := h.Held(fmt.Sprint("s", i)).GPU; got != 16*(i%21) {
			t.Fatalf("server %d: %d tokens, want %d", i, got, 16*(i%21))
		}
	}
	for i := 1; i < 300; i++ {
		f.sources[i].Close()
	}
	f.ix.Match(&p, &h)
	if n := len(h.members.servers); n != 1 || h.Held("s0").GPU != 320 {
		t.Errorf("%d servers, the first holds %d", n, h.Held("s0").GPU)
	}
}

// TestMatch_AllocatesNothing: neither does ingest, once memory has grown.
func TestMatch_AllocatesNothing(t *testing.T) {
	f := newFleet(t, 64)
	p := Prompt{Model: "m", Tokens: count(0, 16000), Salt: "x"}
	var h Hits
	f.ix.Match(&p, &h)
	f.hold(3, h.hashes)
	if n := testing.AllocsPerRun(100, func() { f.ix.Match(&p, &h) }); n != 0 {
		t.Errorf("%v allocations for a match", n)
	}
	if h.Held("s3").GPU != 16000 {
		t.Error("not found")
	}
	payload := wireBatch(wireForm{}, 1, wireEvent{kind: "BlockStored", hashes: []uint64{1, 2}, tokens: count(0, 32), size: 16, medium: "GPU"},
		wireEvent{kind: "BlockRemoved", hashes: []uint64{2, 1}, medium: "GPU"})
	seq := uint64(0)
	if n := testing.AllocsPerRun(1000, func() { f.sources[0].ApplyLive(Message{Seq: seq, Payload: payload}); seq++ }); n != 0 {
		t.Errorf("%v allocations for a batch", n)
	}
}

// TestMatchChains_IsMatchByHashesAlone: what another replica of the same secret sends of
// a prompt finds the same as the prompt itself; one of another secret finds nothing.
func TestMatchChains_IsMatchByHashesAlone(t *testing.T) {
	prompt := Prompt{Model: "m", Tokens: count(0, 1600)}
	open := func(secret string) *Index {
		cfg := Default()
		cfg.Secret = secret
		ix, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for i, blockTokens := range []int{16, 32} {
			s, err := ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			c := newCache(blockTokens, 3)
			c.compute(prompt.Tokens[:800-160*i], false)
			seq := uint64(0)
			c.publish(s, wireForm{}, &seq)
		}
		return ix
	}
	var here, there Hits
	open("same").Match(&prompt, &here)
	open("same").MatchChains("m", len(prompt.Tokens), here.Chains(), &there)
	for server, want := range map[string]int{"s0": 800, "s1": 640} {
		if got := there.Held(server); got != here.Held(server) || got.GPU != want {
			t.Errorf("%s: %+v by hashes, %+v by tokens, want %d", server, got, here.Held(server), want)
		}
	}
	open("other").MatchChains("m", len(prompt.Tokens), here.Chains(), &there)
	if got := there.Held("s0"); got != (cached.Tokens{}) {
		t.Errorf("with another secret: %+v", got)
	}
}

// Of models that come and go as an engine names them anew, few are known that no source has.
func TestIndex_ModelsThatAreGoneAreForgotten(t *testing.T) {
	ix, s := opened(t, Spec{})
	c, seq := newCache(16, 1), uint64(0)
	c.compute(count(0, 160), false)
	c.publish(s, wireForm{}, &seq)
	for i := range 5 * keptModels {
		gone, err := ix.Open(Spec{SourceID: SourceID{Server: "other"}, Model: fmt.Sprint("model ", i)})
		if err != nil {
			t.Fatal(err)
		}
		gone.Close()
		if known := len(ix.Models()); known > keptModels {
			t.Fatalf("%d models are known", known)
		}
	}
	if got := holds(ix, Prompt{Tokens: count(0, 160)}); got != 160 {
		t.Errorf("of a model that has a source %d tokens are known, want 160", got)
	}
}
