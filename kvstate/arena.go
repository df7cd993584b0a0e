package kvstate

// node is one block that a holder has, or had while blocks after it are still there.
// It is 32 bytes: a fleet has millions.
type node struct {
	engine uint64 // the engine's hash: key for parents and removals
	own    Hash
	child  uint32 // first of the blocks that follow; 0: none
	next   uint32 // next block with the same parent; 0: none
	prev   uint32 // the one before it, or firstChild|parent
	marks
}

// inUse is false for nodes that were given back.
func (n *node) inUse() bool { return n.prev != 0 }

// firstChild in node.prev says that the rest of it is the parent.
const firstChild = 1 << 31

// marks packs what else is known of a node:
//
//	bits 0-17   copies in each tier, 6 bits each
//	bits 18-19  level: the slowest tier on the way from the head to here, nowhere if
//	            a block of the way is held in no tier
//	bits 20-21  level of the parent
//	bits 22-31  age: generation of its last confirmation
type marks uint32

const (
	copyBits  = 6
	maxCopies = 1<<copyBits - 1
	ageBits   = 10
)

func (m marks) copies(t Tier) int { return int(m>>(copyBits*t)) & maxCopies }
func (m marks) held() bool        { return m&(1<<(copyBits*tiers)-1) != 0 }
func (m marks) level() Tier       { return Tier(m >> 18 & 3) }
func (m marks) parentLevel() Tier { return Tier(m >> 20 & 3) }
func (m marks) age() uint32       { return uint32(m >> 22) }

// heldBeside reports whether a tier other than t has a copy.
func (m marks) heldBeside(t Tier) bool {
	m.setCopies(t, 0)
	return m.held()
}

// fastest is the fastest tier that has a copy, nowhere if none has.
func (m marks) fastest() Tier {
	for t := GPU; t < tiers; t++ {
		if m.copies(t) > 0 {
			return t
		}
	}
	return nowhere
}

func (m *marks) setCopies(t Tier, n int) {
	*m = *m&^(maxCopies<<(copyBits*t)) | marks(n)<<(copyBits*t)
}
func (m *marks) setLevel(l Tier)       { *m = *m&^(3<<18) | marks(l)<<18 }
func (m *marks) setParentLevel(l Tier) { *m = *m&^(3<<20) | marks(l)<<20 }
func (m *marks) setAge(age uint32)     { *m = *m&(1<<22-1) | marks(age)<<22 }

// arena keeps nodes in pages, so that it grows without copying. Node 0 is the root,
// which stands for the empty prefix.
type arena struct {
	pages []*page
	top   uint32 // nodes ever used, the root included
	free  uint32 // first of the unused nodes below top, linked by next; 0: none
	count int    // nodes in use, without the root
}

const (
	pageBits  = 9
	pageNodes = 1 << pageBits
	// maxNodes is bounded by the bits of a slot of hashTable, less one that means dropped.
	maxNodes = 1<<nodeBits - 2
)

type page [pageNodes]node

func newArena() arena {
	s := arena{top: 1}
	s.pages = append(s.pages, new(page))
	return s
}

func (s *arena) node(i uint32) *node { return &s.pages[i>>pageBits][i&(pageNodes-1)] }

// add returns a zero node, 0 when there are too many.
func (s *arena) add() uint32 {
	i := s.free
	if i != 0 {
		n := s.node(i)
		s.free = n.next
		*n = node{}
		s.count++
		return i
	}
	if s.top > maxNodes {
		return 0
	}
	i = s.top
	if i>>pageBits == uint32(len(s.pages)) {
		s.pages = append(s.pages, new(page))
	}
	s.top++
	s.count++
	return i
}

// remove gives a node back.
func (s *arena) remove(i uint32) {
	*s.node(i) = node{next: s.free}
	s.free = i
	s.count--
}

// link makes node i a child of a parent.
func (s *arena) link(i, parent uint32) {
	n, p := s.node(i), s.node(parent)
	n.next, n.prev = p.child, firstChild|parent
	if p.child != 0 {
		s.node(p.child).prev = i
	}
	p.child = i
}

// unlink takes node i from its siblings. It returns the parent, and that it is childless, if i was its only child.
func (s *arena) unlink(i uint32) (parent uint32, childless bool) {
	n := s.node(i)
	if n.next != 0 {
		s.node(n.next).prev = n.prev
	}
	if n.prev&firstChild == 0 {
		s.node(n.prev).next = n.next
		return 0, false
	}
	parent = n.prev &^ firstChild
	s.node(parent).child = n.next
	return parent, n.next == 0
}

// bytes of memory.
func (s *arena) bytes() int { return len(s.pages) * pageNodes * 32 }
