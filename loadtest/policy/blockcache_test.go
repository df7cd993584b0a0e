package policy

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// check compares the counts that the cache keeps with what it holds.
func (c *blockCache) check(t interface{ Fatalf(string, ...any) }) {
	pinned, listed := 0, 0
	for id, place := range c.places {
		if place == 0 {
			continue
		}
		i := place - 1
		if c.blocks[i].id != int32(id) {
			t.Fatalf("slot of block %d holds block %d", id, c.blocks[i].id)
		}
		if c.blocks[i].holders > 0 {
			pinned++
		}
	}
	for i := c.oldest; i >= 0; i = c.blocks[i].next {
		listed++
		if c.blocks[i].holders != 0 {
			t.Fatalf("block %d is held and may be evicted", c.blocks[i].id)
		}
	}
	if pinned != c.pinned || listed != c.count-pinned {
		t.Fatalf("%d pinned of %d, %d in the list; kept count %d", pinned, c.count, listed, c.pinned)
	}
	if c.count+c.private > c.capacity {
		t.Fatalf("%d blocks and %d private in a cache of %d", c.count, c.private, c.capacity)
	}
}

// Requests come, compute their blocks and go, in any order; the books stay true.
func TestBlockCache_ConservesBlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stored := make(map[int32]bool)
		c := newBlockCache(20*blockTokens, 1000, func(id int32) {
			if !stored[id] {
				t.Fatalf("block %d evicted and never stored", id)
			}
			delete(stored, id)
		})
		type request struct {
			ids      []int32
			hashed   int
			reserved int
		}
		var requests []request
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(requests) > 0 && rapid.Bool().Draw(t, "leave") {
				i := rapid.IntRange(0, len(requests)-1).Draw(t, "who")
				c.drop(requests[i].ids[:requests[i].hashed])
				c.unreserve(requests[i].reserved)
				requests = slices.Delete(requests, i, i+1)
				c.check(t)
				continue
			}
			// A chain: block k of chain n is n*100+k.
			chain, length := rapid.Int32Range(0, 4).Draw(t, "chain"), rapid.IntRange(1, 8).Draw(t, "length")
			var ids []int32
			for k := range length {
				ids = append(ids, chain*100+int32(k))
			}
			hit := c.match(ids)
			c.hold(ids[:hit])
			if !c.reserve(length - hit + 1) { // one block without a hash
				c.drop(ids[:hit])
				c.check(t)
				continue
			}
			r := request{ids: ids, hashed: length, reserved: 1}
			for _, id := range ids[hit:] {
				if c.publish(id) {
					stored[id] = true
				}
			}
			requests = append(requests, r)
			c.check(t)
		}
		for _, r := range requests {
			c.drop(r.ids[:r.hashed])
			c.unreserve(r.reserved)
		}
		if c.check(t); c.used() != 0 {
			t.Fatalf("%d blocks are still held", c.used())
		}
	})
}

func TestBlockCache_EvictsTailsFirst(t *testing.T) {
	if gone := evictThree(t, nil); !slices.Equal(gone, []int32{3, 2, 1}) {
		t.Errorf("evicted %v, want 3 2 1: the head outlives the tail", gone)
	}
}

// evictThree fills a cache with a prompt of the blocks 0 to 3, and returns which three of them make room for another.
func evictThree(t *testing.T, nextUse func(id int32) float64) (gone []int32) {
	t.Helper()
	c := newBlockCache(4*blockTokens, 4, func(id int32) { gone = append(gone, id) })
	c.nextUse = nextUse
	c.reserve(4)
	for id := range int32(4) {
		c.publish(id)
	}
	c.drop([]int32{0, 1, 2, 3})
	if !c.reserve(3) {
		t.Error("there is no room for three blocks")
	}
	return gone
}

func TestBlockCache_HeldBlocksStay(t *testing.T) {
	c := newBlockCache(3*blockTokens, 9, func(id int32) { t.Errorf("block %d evicted", id) })
	c.reserve(3)
	for id := range int32(3) {
		c.publish(id)
	}
	if c.reserve(1) || c.room() != 0 {
		t.Error("a full cache of held blocks gave room")
	}
}
