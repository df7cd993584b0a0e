package policy

import "math"

// blockCache is the KV memory of one server, in blocks: those that requests hold
// (pinned), those kept for reuse, oldest use first to go, and private ones that
// requests hold without a hash (partial blocks, room reserved, output).
//
// As in vLLM a request's blocks are freed tail first, so that the head of a
// prefix, which more requests share, outlives its tail.
type blockCache struct {
	capacity int // blocks
	private  int
	pinned   int     // hashed blocks with holders
	count    int     // hashed blocks that are here
	places   []int32 // by block: one more than its place in blocks; 0: it is not here
	blocks   []cachedBlock
	free     []int32 // unused entries of blocks
	oldest   int32   // ends of the list of unpinned blocks; -1: empty
	newest   int32
	evicted  func(block int32) // called for each block that goes
	// nextUse is when a block is used next: the last to be used goes first. nil: nobody knows.
	nextUse func(block int32) float64
}

type cachedBlock struct {
	id         int32
	holders    int32
	prev, next int32 // in the list of unpinned blocks, towards older and newer
}

// newBlockCache returns an empty one for blocks whose ids are below known.
func newBlockCache(capacityTokens, known int, evicted func(int32)) *blockCache {
	return &blockCache{
		capacity: capacityTokens / blockTokens,
		places:   make([]int32, known),
		oldest:   -1, newest: -1,
		evicted: evicted,
	}
}

// match returns how many leading blocks are held.
func (c *blockCache) match(ids []int32) int {
	for i, id := range ids {
		if c.places[id] == 0 {
			return i
		}
	}
	return len(ids)
}

// room is how many blocks could be taken, by evicting all that no request holds.
func (c *blockCache) room() int { return c.capacity - c.pinned - c.private }

// used is how many blocks requests hold.
func (c *blockCache) used() int { return c.pinned + c.private }

// hold pins blocks that are in the cache.
func (c *blockCache) hold(ids []int32) {
	for _, id := range ids {
		i := c.places[id] - 1
		if c.blocks[i].holders == 0 {
			c.unlink(i)
			c.pinned++
		}
		c.blocks[i].holders++
	}
}

// drop ends a hold; a block without holders may go, the last of ids first.
func (c *blockCache) drop(ids []int32) {
	for k := len(ids) - 1; k >= 0; k-- {
		i := c.places[ids[k]] - 1
		c.blocks[i].holders--
		if c.blocks[i].holders == 0 {
			c.pinned--
			c.link(i)
		}
	}
}

// reserve takes n private blocks, false if there is no room for them.
func (c *blockCache) reserve(n int) bool {
	if n > c.room() {
		return false
	}
	c.private += n
	c.shrink()
	return true
}

// unreserve gives private blocks back.
func (c *blockCache) unreserve(n int) { c.private -= n }

// publish turns one private block, now computed, into a hashed one that the
// caller holds. If the cache has the block already, the private one is freed. It
// reports whether the block is new.
func (c *blockCache) publish(id int32) bool {
	c.private--
	if c.places[id] != 0 {
		c.hold([]int32{id})
		return false
	}
	i := int32(len(c.blocks))
	if n := len(c.free); n > 0 {
		i, c.free = c.free[n-1], c.free[:n-1]
	} else {
		c.blocks = append(c.blocks, cachedBlock{})
	}
	c.blocks[i] = cachedBlock{id: id, holders: 1, prev: -1, next: -1}
	c.places[id] = i + 1
	c.count++
	c.pinned++
	return true
}

// shrink evicts until everything fits.
func (c *blockCache) shrink() {
	for c.count+c.private > c.capacity && c.oldest >= 0 {
		i := c.victim()
		c.unlink(i)
		c.places[c.blocks[i].id] = 0
		c.count--
		c.free = append(c.free, i)
		c.evicted(c.blocks[i].id)
	}
}

// victim is the block that goes next. There is one.
func (c *blockCache) victim() int32 {
	if c.nextUse == nil {
		return c.oldest
	}
	last, latest := c.oldest, c.nextUse(c.blocks[c.oldest].id)
	for i := c.blocks[last].next; i >= 0 && !math.IsInf(latest, 1); i = c.blocks[i].next {
		if at := c.nextUse(c.blocks[i].id); at > latest {
			last, latest = i, at
		}
	}
	return last
}

func (c *blockCache) link(i int32) {
	c.blocks[i].prev, c.blocks[i].next = c.newest, -1
	if c.newest >= 0 {
		c.blocks[c.newest].next = i
	} else {
		c.oldest = i
	}
	c.newest = i
}

func (c *blockCache) unlink(i int32) {
	b := &c.blocks[i]
	if b.prev >= 0 {
		c.blocks[b.prev].next = b.next
	} else {
		c.oldest = b.next
	}
	if b.next >= 0 {
		c.blocks[b.next].prev = b.prev
	} else {
		c.newest = b.prev
	}
	b.prev, b.next = -1, -1
}
