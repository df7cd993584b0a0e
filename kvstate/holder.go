package kvstate

// holder is what one engine (one data-parallel rank, one KV cache group) holds: a tree
// of blocks, and their bits in the tier indexes of its model. Its source's lock guards it.
//
// A block is in the index of its level: the slowest tier needed to have it and all
// before it. A block behind one that is held nowhere is in none, since no prompt can be
// matched through it. So the indexes are closed towards the head whatever order an
// engine evicts in: where heads go first, all behind them leave the indexes with them, and
// return when the head does. A step down or up is a walk over the blocks behind; evicting a
// chain head by head walks it once.
type holder struct {
	group int
	blockForm
	number int // bit in the tier indexes
	tiers  *[tiers]*tierIndex

	nodes        arena
	byEngineHash hashTable
	levels       [tiers + 1]int // blocks by level; the last are nowhere
	duplicates   map[onTier]int
	walk         []uint32 // scratch of relevel
}

// onTier is a hash in the index of a level. Twins counts the blocks beyond the first
// that are there under other engine hashes: an engine may report the same tokens twice.
type onTier struct {
	own   Hash
	level Tier
}

func newHolder(group int, form blockForm, number int, indexes *[tiers]*tierIndex, key uint64) *holder {
	return &holder{
		group: group, blockForm: form, number: number, tiers: indexes,
		nodes: newArena(), byEngineHash: hashTable{key: key},
	}
}

// find returns the node of an engine hash, 0 if it is not known.
func (h *holder) find(engine uint64) uint32 { return h.byEngineHash.find(engine, &h.nodes) }

// stored is the outcome of store.
type stored uint8

const (
	isNew stored = iota
	isCopy
	isOther // the engine hash names other tokens already
	isFull  // no more nodes
)

// warm brings to the cache what storing some blocks will touch. The reads do not wait
// for each other, as those of one store after the other do: a third of the time.
func (h *holder) warm(engines []uint64, owns []Hash) (nothing uint64) {
	for i, own := range owns {
		nothing += h.byEngineHash.warm(engines[i]) + h.tiers[GPU].warm(own)
	}
	return nothing
}

// store notes a copy of a block in a tier, or with nowhere only the block itself.
// Parent 0 is the root. It returns the block's node.
func (h *holder) store(parent uint32, engine uint64, own Hash, tier Tier, age uint32) (uint32, stored) {
	if i := h.find(engine); i != 0 {
		n := h.nodes.node(i)
		if n.own != own {
			return 0, isOther
		}
		n.setAge(age)
		if tier != nowhere {
			h.hold(i, tier)
		}
		return i, isCopy
	}
	i := h.nodes.add()
	if i == 0 {
		return 0, isFull
	}
	n := h.nodes.node(i)
	n.engine, n.own = engine, own
	n.setAge(age)
	above := h.nodes.node(parent).level()
	n.setParentLevel(above)
	if tier != nowhere {
		n.setCopies(tier, 1)
	}
	h.byEngineHash.add(engine, i, &h.nodes)
	h.nodes.link(i, parent)
	level := max(above, tier)
	n.setLevel(level)
	h.levels[level]++
	h.put(own, level)
	return i, isNew
}

// hold adds a copy in a tier.
func (h *holder) hold(i uint32, tier Tier) {
	n := h.nodes.node(i)
	copies := n.copies(tier)
	n.setCopies(tier, min(copies+1, maxCopies))
	if copies == 0 {
		h.relevel(i)
	}
}

// release takes a copy in a tier away; false if there is none.
func (h *holder) release(i uint32, tier Tier) bool {
	n := h.nodes.node(i)
	copies := n.copies(tier)
	if copies == 0 {
		return false
	}
	n.setCopies(tier, copies-1)
	if copies == 1 {
		h.relevel(i)
		h.prune(i)
	}
	return true
}

// relevel puts a block, whose copies have changed, and those behind it into the
// indexes of their levels.
func (h *holder) relevel(i uint32) {
	h.walk = append(h.walk[:0], i)
	for len(h.walk) > 0 {
		i := h.walk[len(h.walk)-1]
		h.walk = h.walk[:len(h.walk)-1]
		n := h.nodes.node(i)
		from, to := n.level(), max(n.parentLevel(), n.fastest())
		if from == to {
			continue
		}
		h.move(n, from, to)
		for c := n.child; c != 0; {
			child := h.nodes.node(c)
			child.setParentLevel(to)
			h.walk = append(h.walk, c)
			c = child.next
		}
	}
	if cap(h.walk) > 1<<16 {
		h.walk = nil
	}
}

func (h *holder) move(n *node, from, to Tier) {
	n.setLevel(to)
	h.levels[from]--
	h.levels[to]++
	h.take(n.own, from)
	h.put(n.own, to)
}

func (h *holder) put(own Hash, level Tier) {
	if level < nowhere && h.tiers[level].put(own, h.number) {
		if h.duplicates == nil {
			h.duplicates = map[onTier]int{}
		}
		h.duplicates[onTier{own, level}]++
	}
}

func (h *holder) take(own Hash, level Tier) {
	if level == nowhere {
		return
	}
	switch n := h.duplicates[onTier{own, level}]; n {
	case 0:
		h.tiers[level].take(own, h.number)
	case 1:
		delete(h.duplicates, onTier{own, level})
	default:
		h.duplicates[onTier{own, level}] = n - 1
	}
}

// prune forgets a block that is held nowhere and has nothing behind it, and then its
// parents likewise. A block with others behind it stays: when it is stored again, they
// are there.
func (h *holder) prune(i uint32) {
	for i != 0 {
		n := h.nodes.node(i)
		if n.held() || n.child != 0 {
			return
		}
		h.levels[n.level()]--
		h.byEngineHash.drop(n.engine, &h.nodes)
		parent, childless := h.nodes.unlink(i)
		h.nodes.remove(i)
		if !childless {
			return
		}
		i = parent
	}
}

// clear drops all copies in one tier. Levels only rise here, so each block is walked
// over three times at most.
func (h *holder) clear(tier Tier) {
	others := false
	h.each(func(_ uint32, n *node) { others = others || n.heldBeside(tier) })
	if !others {
		h.clearAll()
		return
	}
	h.each(func(i uint32, n *node) {
		if n.copies(tier) > 0 {
			n.setCopies(tier, 0)
			h.relevel(i)
		}
	})
	h.each(func(i uint32, _ *node) { h.prune(i) })
	h.compact()
}

// clearAll forgets everything.
func (h *holder) clearAll() {
	h.each(func(_ uint32, n *node) { h.take(n.own, n.level()) })
	h.nodes, h.byEngineHash.slots, h.byEngineHash.filled, h.levels, h.walk, h.duplicates = newArena(), nil, 0, [tiers + 1]int{}, nil, nil
}

// each visits all nodes in use, parents mostly before children. The visit may prune.
func (h *holder) each(visit func(i uint32, n *node)) {
	for i := uint32(1); i < h.nodes.top; i++ {
		if n := h.nodes.node(i); n.inUse() {
			visit(i, n)
		}
	}
}

// compact gives memory back when most of the arena is unused.
func (h *holder) compact() {
	old := &h.nodes
	if len(old.pages) < 4 || int(old.top) < 2*old.count {
		return
	}
	moved := newArena()
	to := make([]uint32, old.top)
	h.each(func(i uint32, n *node) {
		to[i] = moved.add()
		*moved.node(to[i]) = *n
	})
	*moved.node(0) = *old.node(0)
	for i := range moved.top {
		n := moved.node(i)
		n.child, n.next = to[n.child], to[n.next]
		n.prev = n.prev&firstChild | to[n.prev&^firstChild]
	}
	h.nodes = moved
	h.byEngineHash.rebuild(&h.nodes)
}

// blocks that the holder has a copy of, or keeps for those behind them.
func (h *holder) blocks() int { return h.nodes.count }

// bytes of memory, the tier indexes not included.
func (h *holder) bytes() int { return h.nodes.bytes() + h.byEngineHash.bytes() }
