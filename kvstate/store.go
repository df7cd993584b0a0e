package kvstate

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// store is a KV store outside the engines: Mooncake's, a file system or an object store behind
// vLLM's offloading, LMCache. What one server has put there any server of the store can load.
//
// Engines say what they put and mostly never what the store forgets (vLLM 0.32:
// mooncake/store/worker.py sends BlockStored alone; kv_offload/tiering/fs and obj do not expect
// removals), so a block is believed for a time since it was put there, or was last found there by
// an engine's usage. Time goes in epochs: a block has the bit of the epoch in which that was, and
// is there while it has any.
type store struct {
	tier  Tier       // that its blocks count in
	index *tierIndex // bits are epochs, not holders
	every time.Duration
	max   int // blocks

	mu     sync.Mutex // guards what follows
	now    int        // the epoch
	put    [epochs]int
	blocks int // sum of put: a block that was put in several epochs counts in each
	timer  *time.Timer
}

// epochs that a block is believed for, the one in which it was put among them: it lives between
// seven and eight eighths of the store's life.
const epochs = 8

// storeShare is the share of the index's blocks that one store may have beside them. A block of a
// store takes some 25 bytes.
const storeShare = 4

func newStore(tier Tier, cfg *Config) *store {
	return &store{tier: tier, index: newTierIndex(), every: cfg.StoreLife / epochs, max: cfg.MaxBlocks / storeShare}
}

// believe notes that blocks are in the store now.
func (st *store) believe(blocks ...Hash) { st.believeSince(0, blocks...) }

// believeSince notes that blocks were in the store some time ago. What is too old is left out.
func (st *store) believeSince(ago time.Duration, blocks ...Hash) {
	st.mu.Lock()
	defer st.mu.Unlock()
	back := int(max(0, ago) / st.every)
	if back >= epochs {
		return
	}
	if st.timer == nil {
		st.timer = time.AfterFunc(st.every, st.turn)
	}
	for _, own := range blocks {
		if epoch := (st.now + epochs - back) % epochs; !st.index.put(own, epoch) {
			st.put[epoch]++
			st.blocks++
		}
		if st.blocks > st.max {
			st.turnLocked()
		}
	}
}

// disbelieve notes that blocks are not in the store, or not any more.
func (st *store) disbelieve(blocks ...Hash) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, own := range blocks {
		for epoch := range epochs {
			st.index.take(own, epoch)
		}
	}
}

// turn begins the next epoch, and those to come while anything is believed.
func (st *store) turn() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.turnLocked()
	if st.blocks > 0 {
		st.timer.Reset(st.every)
	} else {
		st.timer = nil
	}
}

// turnLocked begins the next epoch: what was put in the one that had its bit before, and not
// since, is forgotten.
func (st *store) turnLocked() {
	st.now = (st.now + 1) % epochs
	st.index.takeAll(st.now)
	st.blocks -= st.put[st.now]
	st.put[st.now] = 0
}

// end is how many leading blocks of a chain can be had where the first so many are held elsewhere
// and the store gives the rest. Like a server's, its blocks are taken for an unbroken run: it
// forgets tails first, since each look for a prompt is one for its head.
func (st *store) end(chain []Hash, from int) int {
	lo, step := from, 1
	for lo < len(chain) {
		look := min(lo+step, len(chain)) - 1
		if !st.has(chain[look]) {
			return st.bisect(chain, lo, look)
		}
		lo, step = look+1, max(2*step, firstStep)
	}
	return max(lo, from)
}

// bisect is where the run ends that has all before lo and not hi.
func (st *store) bisect(chain []Hash, lo, hi int) int {
	for lo < hi {
		if middle := (lo + hi) / 2; st.has(chain[middle]) {
			lo = middle + 1
		} else {
			hi = middle
		}
	}
	return lo
}

func (st *store) has(own Hash) bool {
	t, at := st.index.find(own)
	return t != nil && atomic.LoadUint64(&t.words[at]) != 0
}

// storeRun is how many leading blocks of a match's chain a store has.
type storeRun struct {
	store *store
	blockForm
	end int
}

// withStore is how many leading tokens a holder has of the prompt with what its store has behind so
// many of its own.
func (h *Hits) withStore(holder *held, own int) int {
	for i := range h.runs {
		if run := &h.runs[i]; run.store == holder.store && run.blockForm == holder.blockForm {
			if own <= run.end {
				return run.end
			}
			return holder.store.end(h.chainOf(holder.blockForm), own)
		}
	}
	return own
}

// sharedWith is what a server that has published nothing can load from the store that it names.
func (h *Hits) sharedWith(server string) (has cached.Tokens) {
	st := h.members.sharing[server]
	if st == nil {
		return has
	}
	for _, run := range h.runs {
		if run.store == st {
			has.Disk = max(has.Disk, min(run.end*run.blockTokens, h.tokens))
		}
	}
	return has
}

// RecordCached holds what a server's store was believed to have of the prompt that h is the match
// of against the tokens that the engine found cached (of its own and from the store): what it found
// there is believed anew, what it did not find no more. Without a store nothing happens.
func (ix *Index) RecordCached(server string, h *Hits, cachedTokens int) {
	if h.members == nil {
		return
	}
	for _, rank := range h.members.servers[server] {
		for _, group := range rank.groups {
			for i := range group.holders {
				if holder := &group.holders[i]; holder.store != nil {
					h.recordCached(holder, cachedTokens)
				}
			}
		}
	}
}

func (h *Hits) recordCached(holder *held, cachedTokens int) {
	own, found := int(h.prefixes[holder.number][holder.store.tier]), cachedTokens/holder.blockTokens
	claimed, chain := h.withStore(holder, own), h.chainOf(holder.blockForm)
	switch {
	case claimed <= own || found < own: // of the store nothing was seen
	case found+1 >= claimed: // of a prompt that is held whole the last block is computed again
		holder.store.believe(chain[own:claimed]...)
	default:
		holder.store.believe(chain[own:found]...)
		holder.store.disbelieve(chain[found:claimed]...)
	}
}
