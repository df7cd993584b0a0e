package engine

import "slices"

// block is one place for the KV of BlockSize tokens. Its digest says which tokens
// that KV belongs to, so that a transfer can be checked against a prompt.
type block struct {
	id     int32
	refs   int       // sequences and hand-offs that use it
	hash   blockHash // of a full, reusable block; zero: not in the index
	digest past      // the past at the end of the block; zero: nothing computed yet

	// What the hash was made of, for the ground truth that tests ask for.
	parent  blockHash
	tokens  []int32
	adapter string
	salt    string

	prev, next *block // neighbours in the free list while refs is 0
}

// kvCache is the paged KV cache of one rank. Blocks that are not in use keep their content
// and stay reusable until they are needed again, least recently used first; of one
// sequence the tail goes before the head. The owner of the cache holds its lock.
type kvCache struct {
	blockSize int
	size      int                    // in blocks
	blocks    []*block               // that were ever used: an idle engine takes no memory
	free      block                  // ring of those in blocks: free.next is taken first, free.prev was freed last
	freeCount int                    // with those that were never used, which are taken before the ring
	index     map[blockHash][]*block // equal blocks computed at the same time are all there
	root      blockHash
	events    []kvEvent // since the last takeEvents
}

func newKVCache(blocks, blockSize int, root blockHash) *kvCache {
	c := &kvCache{
		blockSize: blockSize,
		size:      blocks,
		freeCount: blocks,
		index:     map[blockHash][]*block{},
		root:      root,
	}
	c.free.next, c.free.prev = &c.free, &c.free
	return c
}

// total and used are in blocks; share is used/total, 0..1.
func (c *kvCache) total() int     { return c.size }
func (c *kvCache) used() int      { return c.total() - c.freeCount }
func (c *kvCache) share() float64 { return float64(c.used()) / float64(c.total()) }

func (c *kvCache) pushFree(b *block) {
	b.prev, b.next = c.free.prev, &c.free
	b.prev.next, b.next.prev = b, b
	c.freeCount++
}

func (c *kvCache) removeFree(b *block) {
	b.prev.next, b.next.prev = b.next, b.prev
	b.prev, b.next = nil, nil
	c.freeCount--
}

// take returns an empty block, evicting the content of the least recently used one;
// nil when all are in use.
func (c *kvCache) take() *block {
	if c.freeCount == 0 {
		return nil
	}
	b := c.free.next
	if len(c.blocks) < c.size {
		b = c.unused()
	} else {
		c.removeFree(b)
		c.forget(b)
	}
	b.refs = 1
	return b
}

// unused is a block that was never used. Ids begin at 1: vLLM keeps block 0 as a placeholder.
func (c *kvCache) unused() *block {
	b := &block{id: int32(len(c.blocks) + 1)}
	c.blocks = append(c.blocks, b)
	c.freeCount--
	return b
}

// hold adds one more use of a block.
func (c *kvCache) hold(b *block) {
	if b.refs == 0 {
		c.removeFree(b)
	}
	b.refs++
}

// release gives up one use of each block. The last block is freed first, so that it
// is evicted before those it builds on.
func (c *kvCache) release(blocks []*block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		b.refs--
		if b.refs == 0 {
			c.pushFree(b)
		}
	}
}

// forget drops a block's content and reports the removal if it was reusable.
func (c *kvCache) forget(b *block) {
	if b.hash != (blockHash{}) {
		same := c.index[b.hash]
		for i := range same {
			if same[i] == b {
				same = append(same[:i], same[i+1:]...)
				break
			}
		}
		if len(same) == 0 {
			delete(c.index, b.hash)
		} else {
			c.index[b.hash] = same
		}
		c.events = append(c.events, blockRemoved{b.hash})
	}
	b.hash, b.digest, b.parent, b.tokens, b.adapter, b.salt = blockHash{}, 0, blockHash{}, nil, "", ""
}

// lookup returns a reusable block, or nil.
func (c *kvCache) lookup(h blockHash) *block {
	if same := c.index[h]; len(same) > 0 {
		return same[0]
	}
	return nil
}

// store makes the blocks from..to-1 of a sequence reusable and reports them.
func (c *kvCache) store(s *sequence, from, to int, parent blockHash) {
	c.events = append(c.events, c.storedEvent(s, from, to, parent))
	for i := from; i < to; i++ {
		b := s.blocks[i]
		b.hash, b.parent, b.adapter, b.salt = s.hashes[i], parent, s.adapter, s.salt
		b.tokens = slices.Clone(s.tokens[i*c.blockSize : (i+1)*c.blockSize]) // a slice would keep the whole sequence alive
		parent = b.hash
		c.index[b.hash] = append(c.index[b.hash], b)
	}
}

// storedEvent reports the blocks from..to-1 of a sequence.
func (c *kvCache) storedEvent(s *sequence, from, to int, parent blockHash) blockStored {
	stored := blockStored{
		hashes:    s.hashes[from:to],
		parent:    parent,
		root:      from == 0,
		tokens:    s.tokens[from*c.blockSize : to*c.blockSize],
		blockSize: c.blockSize,
		adapter:   s.adapter,
		medium:    medium,
	}
	for i := from; i < to; i++ {
		stored.extra = append(stored.extra, extraKeys(i, s.adapter, s.salt))
	}
	return stored
}

// reportPut reports the blocks from..to-1 of a sequence as put into the store beside the engine.
func (c *kvCache) reportPut(s *sequence, from, to int) {
	s.hashTo(to, c.blockSize, c.root)
	for i := from; i < to; i++ {
		put := blockStored{
			hashes: s.hashes[i : i+1], root: i == 0, tokens: s.tokens[i*c.blockSize : (i+1)*c.blockSize],
			blockSize: c.blockSize, extra: [][]string{nil}, medium: storeMedium,
		}
		if i > 0 {
			put.parent = s.hashes[i-1]
		}
		c.events = append(c.events, put)
	}
}

// clear drops everything reusable. It does nothing and returns false while a block is
// in use, as in vLLM.
func (c *kvCache) clear() bool {
	if c.used() > 0 {
		return false
	}
	for _, b := range c.blocks {
		b.hash, b.digest, b.parent, b.tokens, b.adapter, b.salt = blockHash{}, 0, blockHash{}, nil, "", ""
	}
	clear(c.index)
	c.events = append(c.events, allBlocksCleared{})
	return true
}

// takeEvents returns what happened since the last call.
func (c *kvCache) takeEvents() []kvEvent {
	events := c.events
	c.events = nil
	return events
}
