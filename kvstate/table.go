package kvstate

import (
	"math/bits"
	"sync/atomic"
)

// table maps hashes to sets of holders by open addressing. One writer at a time
// changes it; readers take no lock.
//
// A slot is a hash and then width words with one bit for each holder. A slot's hash is
// written once, after its bits, and never changes as long as the table lives: a reader
// that finds a hash reads bits that belong to it. A hash that is not held any more keeps
// its slot, with no bit set, until the shard builds a new table.
type table struct {
	words  []uint64
	slots  uint64
	stride uint64 // 1 + width
}

func newTable(slots, width int) *table {
	stride := 1 + width
	return &table{words: make([]uint64, slots*stride), slots: uint64(slots), stride: uint64(stride)}
}

// start is the word where the search for a hash begins. The uppermost bits chose the
// shard; those below them choose the slot.
func (t *table) start(h Hash) uint64 {
	slot, _ := bits.Mul64(uint64(h)<<shardBits, t.slots)
	return slot * t.stride
}

// find returns the index of the first word of holders of a hash, 0 if it is not there.
func (t *table) find(h Hash) uint64 {
	for at := t.start(h); ; {
		switch atomic.LoadUint64(&t.words[at]) {
		case uint64(h):
			return at + 1
		case 0: // a table is never full
			return 0
		}
		if at += t.stride; at == uint64(len(t.words)) {
			at = 0
		}
	}
}

// place is find for the writer: where the hash is, or the free slot for it.
func (t *table) place(h Hash) (holders uint64, found bool) {
	for at := t.start(h); ; {
		switch t.words[at] {
		case uint64(h):
			return at + 1, true
		case 0:
			return at + 1, false
		}
		if at += t.stride; at == uint64(len(t.words)) {
			at = 0
		}
	}
}

// held reports whether a server holds what is at holders. For the writer.
func (t *table) held(holders uint64) bool {
	for _, word := range t.words[holders : holders+t.stride-1] {
		if word != 0 {
			return true
		}
	}
	return false
}

// copyTo puts all that is held into a table of at least the same width that is not
// read yet.
func (t *table) copyTo(to *table) {
	for at := uint64(0); at < uint64(len(t.words)); at += t.stride {
		if t.words[at] != 0 && t.held(at+1) {
			holders, _ := to.place(Hash(t.words[at]))
			to.words[holders-1] = t.words[at]
			copy(to.words[holders:], t.words[at+1:at+t.stride])
		}
	}
}
