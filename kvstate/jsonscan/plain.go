package jsonscan

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Sum is a hash of a text, the same in each process, and whether the text is plain: it has no control character and
// none beyond ASCII, as most prompts. Then it is UTF-8, and its strings need not be searched for what may not stand
// in them. Both take one pass, at 12 GB/s. The hash tells texts apart that nobody chose to have the same.
func Sum(text []byte) (sum uint64, plain bool) {
	var odd, some uint64 // of all words, of some
	sum = uint64(len(text))
	for len(text) >= sumBytes {
		sum, some = sumWith(sum, (*[sumBytes]byte)(text))
		odd |= some
		text = text[sumBytes:]
	}
	if len(text) == 0 {
		return sum, odd&highBits == 0
	}
	rest := [sumBytes]byte(blanks)
	copy(rest[:], text)
	sum, some = sumWith(sum, &rest)
	return sum, (odd|some)&highBits == 0
}

// sumBytes is how much of a text Sum reads at once.
const sumBytes = 64

// blanks are behind the end of a text.
var blanks = bytes.Repeat([]byte(" "), sumBytes)

// sumWith is the hash of some bytes and of those before them, of which before is the hash: of equal bytes behind
// different ones no two are the same. Of odd the highest bit of one of its bytes is set, at least, where one of the
// bytes is a control character or beyond ASCII, and no such bit where none is. Written as a loop, or as two functions,
// it would take longer.
func sumWith(before uint64, text *[sumBytes]byte) (sum, odd uint64) {
	const p1, p2, p3, p4 = 0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9, 0x85ebca77c2b2ae63
	a, b, c, d := wordAt(text, 0), wordAt(text, 8), wordAt(text, 16), wordAt(text, 24)
	first := product(a^p1, b^p2) + product(c^p3, d^p4)
	odd = (a - everyByte*' ') | a | (b - everyByte*' ') | b | (c - everyByte*' ') | c | (d - everyByte*' ') | d
	a, b, c, d = wordAt(text, 32), wordAt(text, 40), wordAt(text, 48), wordAt(text, 56)
	second := product(a^p2, b^p3) + product(c^p4, d^p1)
	odd |= (a - everyByte*' ') | a | (b - everyByte*' ') | b | (c - everyByte*' ') | c | (d - everyByte*' ') | d
	return bits.RotateLeft64(before, 27)*p1 + (first ^ bits.RotateLeft64(second, 32)), odd
}

// product mixes two words into one.
func product(x, y uint64) uint64 {
	high, low := bits.Mul64(x, y)
	return high ^ low
}

func wordAt(text *[sumBytes]byte, at int) uint64 {
	return binary.LittleEndian.Uint64(text[at : at+8])
}
