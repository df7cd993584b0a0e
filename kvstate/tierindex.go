package kvstate

import (
	"sync"
	"sync/atomic"
)

// tierIndex is which holders have which blocks of one model in one tier: 1,024 tables, each
// with a lock for its writers.
//
// For each holder the blocks in the indexes of all tiers together are closed towards
// the head: with a block come all before it, in the same index or in that of a faster
// tier (see holder). This is what lets a match jump along a chain.
type tierIndex struct {
	width  atomic.Int32 // words of holders of new tables
	used   atomic.Bool  // something was put here once
	shards [shards]shard
}

const (
	shardBits = 10
	shards    = 1 << shardBits
)

type shard struct {
	table atomic.Pointer[table] // nil: empty

	mu     sync.Mutex // guards changes of the table, and the counts
	filled int        // slots with a hash
	live   int        // slots that are held
	_      [24]byte   // a cache line for each shard
}

// Tables are rebuilt when more than 4/5 of their slots are filled, with room for half as
// many blocks again as are held then: they are 2/3 to 4/5 full while they grow.
const minSlots = 16

func newTierIndex() *tierIndex {
	s := &tierIndex{}
	s.width.Store(1)
	return s
}

// widen makes room for holders in new tables.
func (s *tierIndex) widen(holders int) {
	if width := int32(holders+63) / 64; width > s.width.Load() {
		s.width.Store(width)
	}
}

// ifUsed is the index, nil if nothing was ever put there.
func (s *tierIndex) ifUsed() *tierIndex {
	if !s.used.Load() {
		return nil
	}
	return s
}

// find returns where the holders of a hash are, nil if there are none.
func (s *tierIndex) find(h Hash) (t *table, holders uint64) {
	t = s.shards[h>>(64-shardBits)].table.Load()
	if t == nil {
		return nil, 0
	}
	if holders = t.find(h); holders == 0 {
		return nil, 0
	}
	return t, holders
}

// word is one word of the holders of a hash.
func (s *tierIndex) word(h Hash, word int) uint64 {
	t := s.shards[h>>(64-shardBits)].table.Load()
	if t == nil || uint64(word) >= t.stride-1 {
		return 0
	}
	holders := t.find(h)
	if holders == 0 {
		return 0
	}
	return atomic.LoadUint64(&t.words[holders+uint64(word)])
}

// warm reads where a search for a hash begins, so that it is in the cache when the
// search comes. The result means nothing.
func (s *tierIndex) warm(h Hash) uint64 {
	t := s.shards[h>>(64-shardBits)].table.Load()
	if t == nil {
		return 0
	}
	return atomic.LoadUint64(&t.words[t.start(h)])
}

// put notes that a holder has a block, and reports whether it was noted already.
func (s *tierIndex) put(h Hash, holder int) (already bool) {
	word, bit := uint64(holder/64), uint64(1)<<(holder%64)
	sh := &s.shards[h>>(64-shardBits)]
	sh.mu.Lock()
	t := sh.table.Load()
	if t == nil || word >= t.stride-1 {
		t = sh.rebuild(int(s.width.Load()))
	}
	at, found := t.place(h)
	if !found && uint64(sh.filled+1)*5 > t.slots*4 {
		t = sh.rebuild(int(s.width.Load()))
		at, _ = t.place(h)
	}
	if !t.held(at) {
		sh.live++
	}
	already = t.words[at+word]&bit != 0
	atomic.StoreUint64(&t.words[at+word], t.words[at+word]|bit)
	if !found {
		sh.filled++
		atomic.StoreUint64(&t.words[at-1], uint64(h))
	}
	sh.mu.Unlock()
	if !s.used.Load() {
		s.used.Store(true)
	}
	return already
}

// take notes that a holder has a block no more.
func (s *tierIndex) take(h Hash, holder int) {
	word, bit := uint64(holder/64), uint64(1)<<(holder%64)
	sh := &s.shards[h>>(64-shardBits)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	if t == nil || word >= t.stride-1 {
		return
	}
	at, found := t.place(h)
	if !found || t.words[at+word]&bit == 0 {
		return
	}
	atomic.StoreUint64(&t.words[at+word], t.words[at+word]&^bit)
	if !t.held(at) {
		sh.live--
		if t.slots > minSlots && uint64(sh.live)*4 < t.slots {
			sh.rebuild(int(s.width.Load()))
		}
	}
}

// takeAll notes that a holder has nothing any more, shard by shard.
func (s *tierIndex) takeAll(holder int) {
	word, bit := uint64(holder/64), uint64(1)<<(holder%64)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		if t := sh.table.Load(); t != nil && word < t.stride-1 {
			for at := uint64(1); at < uint64(len(t.words)); at += t.stride {
				if t.words[at+word]&bit == 0 {
					continue
				}
				atomic.StoreUint64(&t.words[at+word], t.words[at+word]&^bit)
				if !t.held(at) {
					sh.live--
				}
			}
			if t.slots > minSlots && uint64(sh.live)*4 < t.slots {
				sh.rebuild(int(s.width.Load()))
			}
		}
		sh.mu.Unlock()
	}
}

// rebuild replaces the table by one that fits what is held. Readers of the old one
// finish there.
func (sh *shard) rebuild(width int) *table {
	old := sh.table.Load()
	if old != nil {
		width = max(width, int(old.stride-1))
	}
	t := newTable(max(minSlots, (sh.live+1)*3/2), width)
	if old != nil {
		old.copyTo(t)
	}
	sh.filled = sh.live
	sh.table.Store(t)
	return t
}

// size is the number of blocks that are held, and the memory of the tables.
func (s *tierIndex) size() (blocks, bytes int) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		blocks += sh.live
		sh.mu.Unlock()
		if t := sh.table.Load(); t != nil {
			bytes += 8 * len(t.words)
		}
	}
	return blocks, bytes
}
