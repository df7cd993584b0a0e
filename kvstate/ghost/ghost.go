// Package ghost remembers which prompts came before, though no server may hold their KV any more: the ghost entries of an
// adaptive cache (Megiddo, Modha: ARC, FAST 2003), for the caches of a fleet together. It says how much of a prompt is
// new, and which share of what is asked for was evicted before it came back.
package ghost

import (
	"iter"
	"math"
	"sync"
	"sync/atomic"
)

const (
	// Stride is how many tokens of a prompt are remembered as one: of the chained hashes of its blocks every so many.
	Stride = 512
	// Reach is how many times the tokens that the caches hold a Memory remembers at least, and at most twice that: what
	// comes back later than that no cache would have kept (loadtest/policy/EXPERIMENTS.md, Protected caches).
	Reach = 4
	// mostEntries bounds it: 134 million tokens, some 5 MB twice.
	mostEntries = 1 << 18
	// window is among how many prompts an old one counts: a factor e less after so many.
	window = 500
	// leastPrompts is of how many at least a share is told: the first ones after a start say little.
	leastPrompts = 100
	// askAgain is after how many prompts at most a Memory of caches that hold nothing, as far as is known, asks what they
	// hold: after one at first, since a fleet that starts says so with its first prompts, then after twice as many each time.
	askAgain = 256
)

// Prompt is the whole blocks of a prompt, as far as its tokens are known.
type Prompt struct {
	Blocks      int
	BlockTokens int
	Hash        func(block int) uint64 // chained: it is that of all tokens up to the block's end
}

// Tokens is the tokens of its whole blocks.
func (p *Prompt) Tokens() int { return p.Blocks * p.BlockTokens }

// step is how many blocks are remembered as one.
func (p *Prompt) step() int { return max(1, Stride/max(1, p.BlockTokens)) }

// Memory is that of one model. The zero value is ready; many goroutines may use it.
type Memory struct {
	mu          sync.Mutex
	young, old  map[uint64]struct{} // what came lately, and what before that
	most        int                 // entries of each
	untilAsked  int                 // prompts until caches that hold nothing are asked for again
	pause       int                 // prompts between the last time and the next
	lost, asked float64             // tokens of an average prompt lately: those that were lost, and all
	prompts     int                 // that were entered, up to leastPrompts

	share atomic.Uint64 // bits of lost / asked
}

// Seen is how many leading tokens of a prompt came before: whole strides, and all of its blocks where all strides did.
func (m *Memory) Seen(p *Prompt) (tokens int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.young) == 0 {
		return 0
	}
	step := p.step()
	for end := step; end <= p.Blocks; end += step {
		hash := p.Hash(end - 1)
		if _, isYoung := m.young[hash]; !isYoung {
			if _, isOld := m.old[hash]; !isOld {
				return (end - step) * p.BlockTokens
			}
		}
	}
	return p.Tokens()
}

// Enter notes that a prompt is computed now of which so many tokens came before and are held nowhere. holds returns the
// tokens that the caches have room for in all, 0 where that is not known; it is seldom called.
func (m *Memory) Enter(p *Prompt, lost int, holds func() int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	step := p.step()
	if !m.knowsRoom(step*p.BlockTokens, holds) {
		return
	}
	for end := step; end <= p.Blocks; end += step {
		hash := p.Hash(end - 1)
		if _, isYoung := m.young[hash]; isYoung {
			continue
		}
		if len(m.young) >= m.most {
			m.young, m.old = m.old, m.young
			clear(m.young)
			if most := entries(holds(), step*p.BlockTokens); most > 0 {
				m.most = most
			}
		}
		m.young[hash] = struct{}{}
	}
	m.lost += (float64(lost) - m.lost) / window
	m.asked += (float64(p.Tokens()) - m.asked) / window
	if m.prompts = min(m.prompts+1, leastPrompts); m.prompts == leastPrompts && m.asked > 0 {
		m.share.Store(math.Float64bits(m.lost / m.asked))
	}
}

// knowsRoom reports whether it is known how much caches hold, and makes the tables once it is.
func (m *Memory) knowsRoom(entryTokens int, holds func() int) bool {
	if m.most > 0 {
		return true
	}
	if m.untilAsked > 0 {
		m.untilAsked--
		return false
	}
	if m.most = entries(holds(), entryTokens); m.most == 0 {
		m.pause = min(max(1, 2*m.pause), askAgain)
		m.untilAsked = m.pause
		return false
	}
	m.young, m.old = make(map[uint64]struct{}), make(map[uint64]struct{})
	return true
}

// entries is how many of so many tokens are remembered of caches that hold so many.
func entries(held, entryTokens int) int {
	if held <= 0 || entryTokens <= 0 {
		return 0
	}
	return min(max(1, Reach*held/entryTokens), mostEntries)
}

// LostShare is which share of the tokens of prompts, 0..1, came before and was held nowhere any more, lately; 0 until enough
// came.
func (m *Memory) LostShare() float64 { return math.Float64frombits(m.share.Load()) }

// Memories are those of several models. The zero value is ready; many goroutines may use them.
type Memories struct{ byModel sync.Map } // string: *Memory

// Of is that of a model. There are as many as models were asked for that servers had.
func (m *Memories) Of(model string) *Memory {
	if known, ok := m.byModel.Load(model); ok {
		return known.(*Memory)
	}
	known, _ := m.byModel.LoadOrStore(model, new(Memory))
	return known.(*Memory)
}

// All yields the models that were asked for and their memories, in no order.
func (m *Memories) All() iter.Seq2[string, *Memory] {
	return func(yield func(string, *Memory) bool) {
		m.byModel.Range(func(model, memory any) bool { return yield(model.(string), memory.(*Memory)) })
	}
}
