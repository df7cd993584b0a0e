package kvstate

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// cacheBlock is a block of a simulated engine.
type cacheBlock struct {
	hash   uint64
	parent uint64 // 0: none
	tokens []uint32
	copies [tiers]int
}

// cache is the KV cache of a simulated engine: what it holds, and the events about it.
type cache struct {
	size    int
	salt    uint64 // of its hashes: no two engines agree
	adapter string
	blocks  map[uint64]*cacheBlock
	events  []wireEvent
}

func newCache(size int, salt uint64) *cache {
	return &cache{size: size, salt: salt, blocks: map[uint64]*cacheBlock{}}
}

// hash is the engine's own; anything will do that depends on parent and tokens.
func (c *cache) hash(parent uint64, tokens []uint32) uint64 {
	h := parent ^ c.salt + 0x2545f4914f6cdd1d
	for _, t := range tokens {
		h = (h ^ uint64(t)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
		h += 0x632be59bd9b4e019
	}
	return h
}

// chain is the hashes of the whole blocks of a prompt.
func (c *cache) chain(prompt []uint32) (hashes []uint64) {
	parent := uint64(0)
	for from := 0; from+c.size <= len(prompt); from += c.size {
		parent = c.hash(parent, prompt[from:from+c.size])
		hashes = append(hashes, parent)
	}
	return hashes
}

// compute stores the blocks of a prompt that the GPU lacks; with copies, all again.
func (c *cache) compute(prompt []uint32, again bool) {
	run := wireEvent{kind: "BlockStored", size: c.size, medium: "GPU", spec: "full_attention", adapter: c.adapter}
	flush := func() {
		if len(run.hashes) > 0 {
			c.events = append(c.events, run)
		}
		run.hashes, run.tokens = nil, nil
	}
	parent := uint64(0)
	for i, hash := range c.chain(prompt) {
		tokens := prompt[i*c.size : (i+1)*c.size]
		b := c.blocks[hash]
		if b == nil {
			b = &cacheBlock{hash: hash, parent: parent, tokens: tokens}
			c.blocks[hash] = b
		}
		if b.copies[GPU] == 0 || again {
			if len(run.hashes) == 0 {
				run.parent = parent
			}
			b.copies[GPU]++
			run.hashes = append(run.hashes, hash)
			run.tokens = append(run.tokens, tokens...)
		} else {
			flush()
		}
		parent = hash
	}
	flush()
}

var media = [tiers]string{"GPU", "CPU", "DISK"}

// offload copies a block that is held to a slower tier.
func (c *cache) offload(b *cacheBlock, to Tier) {
	b.copies[to]++
	c.events = append(c.events, wireEvent{kind: "BlockStored", hashes: []uint64{b.hash}, size: c.size, medium: media[to], spec: "full_attention"})
}

// evict drops one copy of a block.
func (c *cache) evict(b *cacheBlock, from Tier) {
	if b.copies[from]--; b.copies == [tiers]int{} {
		delete(c.blocks, b.hash)
	}
	c.events = append(c.events, wireEvent{kind: "BlockRemoved", hashes: []uint64{b.hash}, medium: media[from]})
}

// clear empties the GPU.
func (c *cache) clear() {
	for hash, b := range c.blocks {
		if b.copies[GPU] = 0; b.copies == [tiers]int{} {
			delete(c.blocks, hash)
		}
	}
	c.events = append(c.events, wireEvent{kind: "AllBlocksCleared"})
}

// truth is what Match should say of a prompt.
func (c *cache) truth(prompt []uint32) (h cached.Tokens) {
	ends := [tiers]int{-1, -1, -1}
	chain := c.chain(prompt)
	for i, hash := range chain {
		fastest := nowhere
		if b := c.blocks[hash]; b != nil {
			for t := Disk + 1; t > 0; t-- {
				if b.copies[t-1] > 0 {
					fastest = t - 1
				}
			}
		}
		for t := GPU; t < tiers; t++ {
			if ends[t] < 0 && fastest > t {
				ends[t] = i
			}
		}
	}
	for t := range ends {
		if ends[t] < 0 {
			ends[t] = len(chain)
		}
	}
	h = cached.Tokens{GPU: ends[GPU] * c.size, CPU: ends[CPU] * c.size, Disk: ends[Disk] * c.size}
	return h
}

// step makes the engine do something.
func (c *cache) step(t *rapid.T, prompts [][]uint32) {
	any := func() *cacheBlock {
		hashes := slices.Sorted(maps.Keys(c.blocks))
		if len(hashes) == 0 {
			return nil
		}
		return c.blocks[rapid.SampledFrom(hashes).Draw(t, "block")]
	}
	switch rapid.SampledFrom([]string{"compute", "compute", "compute", "again", "evict", "evict", "tail", "offload", "clear"}).Draw(t, "step") {
	case "compute":
		c.compute(rapid.SampledFrom(prompts).Draw(t, "prompt"), false)
	case "again":
		c.compute(rapid.SampledFrom(prompts).Draw(t, "prompt"), true)
	case "evict": // any block: heads too
		if b := any(); b != nil {
			for t := range b.copies {
				if b.copies[t] > 0 {
					c.evict(b, Tier(t))
					break
				}
			}
		}
	case "tail": // as vLLM does: from the end of a chain
		chain := c.chain(rapid.SampledFrom(prompts).Draw(t, "prompt"))
		for i := len(chain) - 1; i >= max(0, len(chain)-4); i-- {
			if b := c.blocks[chain[i]]; b != nil && b.copies[GPU] > 0 {
				c.evict(b, GPU)
			}
		}
	case "offload":
		if b := any(); b != nil {
			c.offload(b, rapid.SampledFrom([]Tier{CPU, Disk}).Draw(t, "to"))
		}
	case "clear":
		c.clear()
	}
}

// drawPrompts makes prompts that share prefixes.
func drawPrompts(t *rapid.T) [][]uint32 {
	prompts := make([][]uint32, rapid.IntRange(2, 8).Draw(t, "prompts"))
	for i := range prompts {
		if i > 0 {
			from := prompts[rapid.IntRange(0, i-1).Draw(t, "of")]
			prompts[i] = slices.Clone(from[:rapid.IntRange(0, len(from)).Draw(t, "shared")])
		}
		more := rapid.IntRange(1, 200).Draw(t, "more")
		for n := range more {
			prompts[i] = append(prompts[i], uint32(1000*i+n))
		}
	}
	return prompts
}

// publish hands the events of a cache to a source that misses nothing.
func (c *cache) publish(source *Source, form wireForm, seq *uint64) {
	payload := wireBatch(form, float64(*seq), c.events...)
	c.events = nil
	source.ApplyLive(Message{Seq: *seq, Payload: payload})
	*seq++
}

// TestMatch_IsExact: whatever engines store and evict in whatever order, a match says
// what they hold, in every tier, for engines with different block sizes and encodings.
func TestMatch_IsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ix, err := New(Default())
		if err != nil {
			t.Fatal(err)
		}
		prompts := drawPrompts(t)
		n := rapid.IntRange(1, 5).Draw(t, "engines")
		caches, sources, seqs := make([]*cache, n), make([]*Source, n), make([]uint64, n)
		forms := make([]wireForm, n)
		for i := range n {
			caches[i] = newCache(rapid.SampledFrom([]int{1, 4, 16, 20}).Draw(t, "block size"), uint64(i)*977)
			forms[i] = wireForm{
				maps:   rapid.Bool().Draw(t, "maps"),
				hashes: rapid.SampledFrom([]string{"uint", "int", "bin"}).Draw(t, "hashes"),
				short:  rapid.Bool().Draw(t, "short"),
			}
			if sources[i], err = ix.Open(Spec{SourceID: SourceID{Server: fmt.Sprint("s", i)}, Model: "m"}); err != nil {
				t.Fatal(err)
			}
		}
		var hits Hits
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "engine")
			caches[i].step(t, prompts)
			caches[i].publish(sources[i], forms[i], &seqs[i])
			sources[i].checkTree(t)
			for _, prompt := range prompts {
				ix.Match(&Prompt{Model: "m", Tokens: prompt}, &hits)
				for j := range n {
					if got, want := hits.Held(sources[j].ID().Server), caches[j].truth(prompt); got != want && caches[j].size > 0 {
						t.Fatalf("engine %d with blocks of %d: %+v, truth %+v of %d tokens", j, caches[j].size, got, want, len(prompt))
					}
				}
			}
		}
		for _, s := range sources {
			s.Close()
		}
		for _, m := range ix.Models() {
			for tier, index := range m.Tiers {
				if index.Blocks != 0 {
					t.Errorf("%d blocks left in tier %d of no server", index.Blocks, tier)
				}
			}
		}
		if left := ix.blocks.Load(); left != 0 {
			t.Errorf("%d blocks counted of no server", left)
		}
	})
}

// checkTree fails if the tree of a holder contradicts itself or the tier indexes.
func (s *Source) checkTree(t interface{ Fatalf(string, ...any) }) {
	for _, h := range s.holders {
		var levels [tiers + 1]int
		seen := 0
		twins := map[onTier]int{}
		h.each(func(_ uint32, n *node) { twins[onTier{n.own, n.level()}]++ })
		var visit func(parent uint32, level Tier)
		visit = func(parent uint32, level Tier) {
			prev := firstChild | parent
			for c := h.nodes.node(parent).child; c != 0; c = h.nodes.node(c).next {
				n := h.nodes.node(c)
				if n.prev != prev {
					t.Fatalf("node %d: prev %x, want %x", c, n.prev, prev)
				}
				want := max(level, n.fastest())
				if n.parentLevel() != level || n.level() != want {
					t.Fatalf("node %d: level %v behind %v, want %v behind %v", c, n.level(), n.parentLevel(), want, level)
				}
				if h.find(n.engine) != c {
					t.Fatalf("node %d is not found", c)
				}
				if !n.held() && n.child == 0 {
					t.Fatalf("node %d is kept for nothing", c)
				}
				for tier, index := range h.tiers {
					if on := index.word(n.own, h.number/64)>>(h.number%64)&1 == 1; on != (twins[onTier{n.own, Tier(tier)}] > 0) {
						t.Fatalf("node %d of level %v: in index %d: %v", c, want, tier, on)
					}
				}
				levels[want]++
				seen++
				prev = c
				visit(c, want)
			}
		}
		visit(0, GPU)
		if seen != h.blocks() || levels != h.levels {
			t.Fatalf("%d of %d nodes reached, levels %v, counted %v", seen, h.blocks(), levels, h.levels)
		}
	}
}
