package kvstate

import "math/bits"

// hashTable maps the engine's hashes to nodes by open addressing: 4 bytes a slot, of which
// the upper bits are a tag from the hash, so that other nodes are seldom looked at.
// Engine hashes follow from what clients send; the key keeps them from choosing slots.
type hashTable struct {
	slots  []uint32
	filled int // slots in use, dropped ones included
	key    uint64
}

const (
	nodeBits  = 26
	tagMask   = ^uint32(1<<nodeBits - 1)
	emptyAt   = 0
	tombstone = 1<<nodeBits - 1 // a node number beyond maxNodes
)

// slotOf turns an engine hash into a place to start at and a tag.
func (p *hashTable) slotOf(engine uint64) (start int, tag uint32) {
	h := fold(engine^p.key, p.key|1)
	slot, _ := bits.Mul64(h, uint64(len(p.slots)))
	return int(slot), uint32(h) & tagMask
}

// find returns the node of an engine hash, 0 if there is none.
func (p *hashTable) find(engine uint64, s *arena) uint32 {
	if len(p.slots) == 0 {
		return 0
	}
	at, tag := p.slotOf(engine)
	for {
		slot := p.slots[at]
		if slot == emptyAt {
			return 0
		}
		if i := slot &^ tagMask; slot&tagMask == tag && i != tombstone && s.node(i).engine == engine {
			return i
		}
		if at++; at == len(p.slots) {
			at = 0
		}
	}
}

// add notes a node whose engine hash is not there yet, before the node is linked.
func (p *hashTable) add(engine uint64, i uint32, s *arena) {
	if (p.filled+1)*5 > len(p.slots)*4 {
		p.rebuild(s)
	}
	at, tag := p.slotOf(engine)
	for p.slots[at] != emptyAt {
		if at++; at == len(p.slots) {
			at = 0
		}
	}
	p.slots[at] = tag | i
	p.filled++
}

// drop forgets an engine hash that is there.
func (p *hashTable) drop(engine uint64, s *arena) {
	at, tag := p.slotOf(engine)
	for {
		slot := p.slots[at]
		if i := slot &^ tagMask; slot&tagMask == tag && i != tombstone && s.node(i).engine == engine {
			p.slots[at] = tombstone
			return
		}
		if at++; at == len(p.slots) {
			at = 0
		}
	}
}

// rebuild makes room for as many nodes again as there are. It goes over the nodes and
// not over the old slots, since memory is read faster in order.
func (p *hashTable) rebuild(s *arena) {
	p.slots = make([]uint32, max(16, 2*(s.count+1)))
	p.filled = 0
	for i := uint32(1); i < s.top; i++ {
		if n := s.node(i); n.inUse() {
			p.add(n.engine, i, s)
		}
	}
}

// warm reads where a search for an engine hash begins, so that it is in the cache when
// the search comes. The result means nothing.
func (p *hashTable) warm(engine uint64) uint64 {
	if len(p.slots) == 0 {
		return 0
	}
	at, _ := p.slotOf(engine)
	return uint64(p.slots[at])
}

// bytes of memory.
func (p *hashTable) bytes() int { return 4 * len(p.slots) }
