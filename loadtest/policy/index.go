package policy

import "math/bits"

// index is what a gateway knows of the blocks that servers hold: for each block
// a set of servers, prefill first, decode after, in one word or two.
type index struct {
	servers int
	words   int
	holders []uint64 // words for each block
	alive   []uint64 // scratch of match
}

func newIndex(servers, blocks int) *index {
	words := (servers + 63) / 64
	return &index{servers: servers, words: words, holders: make([]uint64, words*blocks), alive: make([]uint64, words)}
}

func (x *index) apply(ev kvEvent) {
	word, bit := int(ev.block)*x.words+int(ev.server)/64, uint64(1)<<(ev.server%64)
	if ev.stored {
		x.holders[word] |= bit
	} else {
		x.holders[word] &^= bit
	}
}

// match sets, for each server, how many leading blocks it is believed to hold.
func (x *index) match(blocks []int32, held []int) {
	clear(held)
	for w := range x.alive {
		x.alive[w] = ^uint64(0)
	}
	for depth, block := range blocks {
		left := uint64(0)
		for w := range x.alive {
			gone := x.alive[w] &^ x.holders[int(block)*x.words+w]
			x.alive[w] &^= gone
			left |= x.alive[w]
			if depth == 0 {
				continue // held is 0 already
			}
			for ; gone != 0; gone &= gone - 1 {
				if s := w*64 + bits.TrailingZeros64(gone); s < x.servers {
					held[s] = depth
				}
			}
		}
		if left == 0 {
			return
		}
	}
	for w, alive := range x.alive {
		for ; alive != 0; alive &= alive - 1 {
			if s := w*64 + bits.TrailingZeros64(alive); s < x.servers {
				held[s] = len(blocks)
			}
		}
	}
}
