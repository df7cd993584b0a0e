package engine

import (
	"fmt"
	"slices"
	"testing"
)

// storeSequence stores one sequence of n blocks and frees it again.
func storeSequence(c *kvCache, n int, salt string) *sequence {
	s := &sequence{tokens: make([]int32, n*c.blockSize), salt: salt}
	s.hashTo(n, c.blockSize, c.root)
	for range n {
		s.blocks = append(s.blocks, c.take())
	}
	c.store(s, 0, n, c.root)
	return s
}

func TestKVCache_EvictsTheTailFirst(t *testing.T) {
	c := newKVCache(6, 4, rootHash("x"))
	s := storeSequence(c, 4, "a")
	c.release(s.blocks)
	c.takeEvents()
	for range 4 { // two blocks were never used, two are evicted
		c.take()
	}
	for i, h := range s.hashes {
		if held := c.lookup(h) != nil; held != (i < 2) {
			t.Errorf("block %d held: %v", i, held)
		}
	}
	var removed []blockHash
	for _, e := range c.takeEvents() {
		removed = append(removed, e.(blockRemoved).hash)
	}
	if want := []blockHash{s.hashes[3], s.hashes[2]}; !slices.Equal(removed, want) {
		t.Errorf("removed %v, want the last and the one before", removed)
	}
}

func TestKVCache_LeastRecentlyUsedGoesFirst(t *testing.T) {
	c := newKVCache(4, 4, rootHash("x"))
	old, young := storeSequence(c, 2, "old"), storeSequence(c, 2, "young")
	c.release(old.blocks)
	c.release(young.blocks)
	c.hold(old.blocks[0]) // used again
	c.hold(old.blocks[1])
	c.release(old.blocks)
	c.take()
	c.take()
	if c.lookup(old.hashes[0]) == nil || c.lookup(young.hashes[0]) != nil {
		t.Error("the sequence used last was evicted")
	}
}

func TestKVCache_EqualBlocksAreAllThere(t *testing.T) {
	c := newKVCache(2, 4, rootHash("x"))
	a, b := storeSequence(c, 1, ""), storeSequence(c, 1, "")
	c.release(a.blocks)
	c.release(b.blocks)
	c.take()
	if c.lookup(a.hashes[0]) == nil {
		t.Error("the second block of the same content went with the first")
	}
	c.take()
	if c.lookup(a.hashes[0]) != nil {
		t.Error("still held after both are gone")
	}
}

func TestKVCache_SharedBlocksStayUntilAllAreDone(t *testing.T) {
	c := newKVCache(3, 4, rootHash("x"))
	s := storeSequence(c, 2, "")
	c.hold(s.blocks[0])
	c.release(s.blocks)
	if c.used() != 1 || fmt.Sprintf("%.2f", c.share()) != "0.33" {
		t.Errorf("used %d, share %v", c.used(), c.share())
	}
	if c.clear() {
		t.Error("cleared while a block is in use")
	}
	c.release(s.blocks[:1])
	if !c.clear() || c.lookup(s.hashes[0]) != nil {
		t.Error("not cleared")
	}
}
