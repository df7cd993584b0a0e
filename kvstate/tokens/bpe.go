package tokens

import (
	"container/heap"
	"sync"
)

// merges is a byte-level byte-pair encoding: which neighbouring tokens become one, and
// in which order.
type merges struct {
	bytes  [256]uint32         // token of each byte
	joined map[uint64]joining  // by pair of tokens
	words  map[string]uint32   // token of a whole piece; nil: pieces are always merged
	mu     sync.RWMutex        // guards short
	short  map[string][]uint32 // pieces encoded before
}

// joining is a merge.
type joining struct {
	rank  uint32 // lowest first
	token uint32 // what the pair becomes
}

const (
	// Pieces of text are mostly words, and mostly the same ones. The cache of short
	// ones starts anew when it is full.
	cachedPieces = 1 << 16
	shortPiece   = 32 // bytes
)

func pairOf(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }

// appendPieces appends the tokens of each piece.
func (m *merges) appendPieces(ids []uint32, pieces []string) []uint32 {
	var learned map[string][]uint32
	m.mu.RLock()
	for _, piece := range pieces {
		if known, ok := m.short[piece]; ok {
			ids = append(ids, known...)
			continue
		}
		from := len(ids)
		ids = m.appendPiece(ids, piece)
		if len(piece) <= shortPiece {
			if learned == nil {
				learned = map[string][]uint32{}
			}
			learned[piece] = append([]uint32(nil), ids[from:]...)
		}
	}
	m.mu.RUnlock()
	m.keep(learned)
	return ids
}

func (m *merges) keep(learned map[string][]uint32) {
	if learned == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.short == nil || len(m.short) > cachedPieces {
		m.short = map[string][]uint32{}
	}
	for piece, ids := range learned {
		m.short[string([]byte(piece))] = ids // a copy: the piece is part of a prompt
	}
}

// scanned is how many tokens a piece may have for the plain search for the next merge,
// which is quadratic but has nothing to set up.
const scanned = 64

// appendPiece appends the tokens of one piece: merges in order of rank, equal ones
// from left to right.
func (m *merges) appendPiece(ids []uint32, piece string) []uint32 {
	if token, ok := m.words[piece]; ok {
		return append(ids, token)
	}
	from := len(ids)
	for i := range len(piece) {
		ids = append(ids, m.bytes[piece[i]])
	}
	if len(piece) > scanned {
		return append(ids[:from], m.mergeLong(ids[from:])...)
	}
	for word := ids[from:]; ; {
		best, at := joining{}, -1
		for i := 0; i+1 < len(word); i++ {
			if j, ok := m.joined[pairOf(word[i], word[i+1])]; ok && (at < 0 || j.rank < best.rank) {
				best, at = j, i
			}
		}
		if at < 0 {
			return ids[:from+len(word)]
		}
		word[at] = best.token
		word = append(word[:at+1], word[at+2:]...)
	}
}

// mergeLong does the same in n log n: a client may send a megabyte without a space.
func (m *merges) mergeLong(ids []uint32) []uint32 {
	w := &longWord{m: m, ids: ids, next: make([]int32, len(ids)), prev: make([]int32, len(ids))}
	for i := range ids {
		w.next[i], w.prev[i] = int32(i)+1, int32(i)-1
	}
	w.next[len(ids)-1] = -1
	for i := range ids {
		w.offer(int32(i))
	}
	for w.Len() > 0 {
		c := heap.Pop(w).(candidate)
		right := w.next[c.at]
		if w.ids[c.at] != c.left || right < 0 || w.ids[right] != c.right {
			continue // one of the two was merged meanwhile
		}
		w.ids[c.at], w.ids[right] = c.token, gone
		w.next[c.at] = w.next[right]
		if w.next[right] >= 0 {
			w.prev[w.next[right]] = c.at
		}
		w.offer(c.at)
		if w.prev[c.at] >= 0 {
			w.offer(w.prev[c.at])
		}
	}
	out := ids[:0]
	for i := int32(0); i >= 0; i = w.next[i] {
		out = append(out, ids[i])
	}
	return out
}

// gone is the token at places that were merged into their left neighbour.
const gone = ^uint32(0)

// longWord is a piece being merged: tokens linked to their neighbours, and a heap of
// the merges that were possible when they were offered.
type longWord struct {
	m          *merges
	ids        []uint32
	next, prev []int32
	queue      []candidate
}

type candidate struct {
	joining
	at          int32
	left, right uint32
}

// offer queues the merge of the token at i with the next one, if there is one.
func (w *longWord) offer(i int32) {
	right := w.next[i]
	if right < 0 {
		return
	}
	if j, ok := w.m.joined[pairOf(w.ids[i], w.ids[right])]; ok {
		heap.Push(w, candidate{j, i, w.ids[i], w.ids[right]})
	}
}

func (w *longWord) Len() int { return len(w.queue) }
func (w *longWord) Less(i, j int) bool {
	a, b := w.queue[i], w.queue[j]
	return a.rank < b.rank || a.rank == b.rank && a.at < b.at
}
func (w *longWord) Swap(i, j int) { w.queue[i], w.queue[j] = w.queue[j], w.queue[i] }
func (w *longWord) Push(c any)    { w.queue = append(w.queue, c.(candidate)) }
func (w *longWord) Pop() any {
	last := len(w.queue) - 1
	c := w.queue[last]
	w.queue = w.queue[:last]
	return c
}
