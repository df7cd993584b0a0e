package replay

import (
	"container/list"
	"slices"
)

// prefixCache holds the blocks that were used last.
type prefixCache struct {
	most  int                      // blocks; 0: any number
	held  map[uint64]*list.Element // by block
	order *list.List               // of blocks, the last used first
}

func newPrefixCache(most int) prefixCache {
	return prefixCache{most: most, held: make(map[uint64]*list.Element), order: list.New()}
}

// match is how many leading blocks of a prompt it holds.
func (c *prefixCache) match(blocks []uint64) int {
	if missing := slices.IndexFunc(blocks, func(b uint64) bool { return c.held[b] == nil }); missing >= 0 {
		return missing
	}
	return len(blocks)
}

// add takes in the blocks of a prompt. Those at its end make way before those at its beginning.
func (c *prefixCache) add(blocks []uint64) {
	for _, b := range slices.Backward(blocks) {
		if at := c.held[b]; at != nil {
			c.order.MoveToFront(at)
		} else {
			c.held[b] = c.order.PushFront(b)
		}
	}
	for c.most > 0 && c.order.Len() > c.most {
		delete(c.held, c.order.Remove(c.order.Back()).(uint64))
	}
}
