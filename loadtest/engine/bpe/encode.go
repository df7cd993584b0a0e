package bpe

import (
	"math/bits"
	"sync"
)

// What encodes is not watched by the race detector (go:norace): it reads the tokenizer, which
// never changes, and writes only what the call itself owns. Watched, it would take most of the
// time of all tests that have simulated engines.

// shortText is the length in bytes below which scanning for the best merge beats
// setting up the queues of encodeLong.
const shortText = 48

// Encode turns text into tokens. It applies merges in order of rank, and equal
// merges from left to right. Special tokens' names are ordinary text here.
func (t *Tokenizer) Encode(text string) []int32 {
	if len(text) <= shortText {
		return t.encodeShort(text)
	}
	return t.encodeLong(text)
}

// encodeShort looks for the lowest rank, merges it, and looks again: quadratic,
// but with nothing to set up.
//
//go:norace
func (t *Tokenizer) encodeShort(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range len(text) {
		ids[i] = int32(text[i])
	}
	for {
		best, at := int32(-1), -1
		for i := 0; i+1 < len(ids); i++ {
			if rank, ok := t.ranks.get(ids[i], ids[i+1]); ok && (best < 0 || rank < best) {
				best, at = rank, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = byteTokens + best
		ids = append(ids[:at+1], ids[at+2:]...)
	}
}

// none ends a linked list of positions, and is the rank of no merge.
const none = int32(-1)

// piece is one token of a text being encoded, at the position of its first byte.
// Pieces are linked to their neighbours in the text, and to the other pieces that
// wait for the same merge with their right neighbour.
type piece struct {
	id          int32
	left, right int32 // neighbours
	rank        int32 // merge of this piece with its right neighbour, or none
	prev, next  int32 // neighbours in the queue of that rank
}

// encoding is the state of encodeLong: the pieces, and one queue for each rank. All queues
// are empty between two uses.
type encoding struct {
	t      *Tokenizer
	pieces []piece
	head   []int32  // by rank; only of ranks that wait
	tail   []int32  // by rank
	waits  []uint64 // a bit for each rank: its queue is not empty
}

// encodings are kept for the next text: most texts are shorter than the list of ranks.
type encodings struct{ sync.Pool }

func (p *encodings) get(t *Tokenizer) *encoding {
	if e, ok := p.Get().(*encoding); ok {
		return e
	}
	n := len(t.merges)
	return &encoding{t: t, head: make([]int32, n), tail: make([]int32, n), waits: make([]uint64, (n+63)/64)}
}

// encodeLong serves one queue of waiting pieces for each rank, lowest rank first.
// A merge makes a token newer than itself, so every pair it opens has a higher rank
// and one pass over the queues suffices: time is linear in len(text).
//
//go:norace
func (t *Tokenizer) encodeLong(text string) []int32 {
	e := t.encodings.get(t)
	defer t.encodings.Put(e)
	if cap(e.pieces) < len(text) {
		e.pieces = make([]piece, len(text))
	}
	e.pieces = e.pieces[:len(text)]
	last := int32(len(text) - 1)
	for i := range e.pieces {
		e.pieces[i] = piece{id: int32(text[i]), left: int32(i) - 1, right: int32(i) + 1, rank: none}
	}
	e.pieces[last].right = none
	for i := range last {
		e.enqueue(i)
	}
	count := len(text)
	for word := range e.waits {
		for e.waits[word] != 0 {
			rank := word*64 + bits.TrailingZeros64(e.waits[word])
			e.merge(e.firstOfRun(e.head[rank]))
			count--
		}
	}
	ids := make([]int32, 0, count)
	for i := int32(0); i != none; i = e.pieces[i].right {
		ids = append(ids, e.pieces[i].id)
	}
	return ids
}

// firstOfRun walks back over a run of equal tokens ("aaaa"), whose merges overlap,
// so that they are made from left to right. Elsewhere it returns i.
//
//go:norace
func (e *encoding) firstOfRun(i int32) int32 {
	p := e.pieces[i]
	if e.pieces[p.right].id != p.id {
		return i
	}
	for l := e.pieces[i].left; l != none && e.pieces[l].id == p.id; l = e.pieces[i].left {
		i = l
	}
	return i
}

// merge joins the piece at i with its right neighbour and queues the two new pairs.
//
//go:norace
func (e *encoding) merge(i int32) {
	p := &e.pieces[i]
	rank, right := p.rank, p.right
	e.dequeue(i)
	e.dequeue(right)
	p.id = byteTokens + rank
	p.right = e.pieces[right].right
	if p.right != none {
		e.pieces[p.right].left = i
		e.enqueue(i)
	}
	if p.left != none {
		e.dequeue(p.left)
		e.enqueue(p.left)
	}
}

// enqueue puts the piece at i into the queue of its merge with the piece after it.
//
//go:norace
func (e *encoding) enqueue(i int32) {
	p := &e.pieces[i]
	rank, ok := e.t.ranks.get(p.id, e.pieces[p.right].id)
	if !ok {
		return
	}
	p.rank, p.prev, p.next = rank, none, none
	if bit := uint64(1) << (rank % 64); e.waits[rank/64]&bit == 0 {
		e.waits[rank/64] |= bit
		e.head[rank] = i
	} else {
		p.prev = e.tail[rank]
		e.pieces[p.prev].next = i
	}
	e.tail[rank] = i
}

// dequeue takes the piece at i out of its queue, if it is in one.
//
//go:norace
func (e *encoding) dequeue(i int32) {
	p := &e.pieces[i]
	if p.rank == none {
		return
	}
	switch {
	case p.prev == none && p.next == none:
		e.waits[p.rank/64] &^= 1 << (p.rank % 64)
	case p.prev == none:
		e.head[p.rank], e.pieces[p.next].prev = p.next, none
	case p.next == none:
		e.tail[p.rank], e.pieces[p.prev].next = p.prev, none
	default:
		e.pieces[p.prev].next, e.pieces[p.next].prev = p.next, p.prev
	}
	p.rank = none
}

// pairTable maps a pair of tokens to the rank of its merge: open addressing in two
// flat arrays, since a Go map takes most of the encoding time.
type pairTable struct {
	keys  []uint64 // left<<32 | right, plus one; 0 is a free slot
	ranks []int32
	shift uint // of a 64-bit product down to a slot
}

func newPairTable(entries int) pairTable {
	bits := uint(4)
	for 1<<bits < 4*entries {
		bits++
	}
	return pairTable{keys: make([]uint64, 1<<bits), ranks: make([]int32, 1<<bits), shift: 64 - bits}
}

// slot is where the pair is, or the free slot where it would go.
func (p *pairTable) slot(left, right int32) (slot int, key uint64) {
	key = uint64(uint32(left))<<32 | uint64(uint32(right)) + 1
	slot = int(key * 0x9E3779B97F4A7C15 >> p.shift)
	for p.keys[slot] != 0 && p.keys[slot] != key {
		slot = (slot + 1) & (len(p.keys) - 1)
	}
	return slot, key
}

// put keeps the first rank of a pair: a pair merged twice has the lower rank.
func (p *pairTable) put(left, right, rank int32) {
	slot, key := p.slot(left, right)
	if p.keys[slot] == 0 {
		p.keys[slot], p.ranks[slot] = key, rank
	}
}

func (p *pairTable) get(left, right int32) (rank int32, ok bool) {
	slot, _ := p.slot(left, right)
	return p.ranks[slot], p.keys[slot] != 0
}
