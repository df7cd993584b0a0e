package tokens

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// ParseIDs reads a JSON list of token ids, which was checked: false where it has none, or has others. Those of a long
// prompt are hundreds of kilobytes, so the digits of an id are read together, eight bytes at a time.
func ParseIDs(raw []byte) (ids []uint32, ok bool) {
	if len(raw) < len("[0]") || raw[0] != '[' || raw[len(raw)-1] != ']' || bytes.IndexByte(raw, '"') >= 0 { // a text may be all commas
		return nil, false
	}
	ids = make([]uint32, 0, 1+bytes.Count(raw, []byte{','}))
	for at := 1; ; at++ { // behind a bracket or a comma
		at = skipBlank(raw, at)
		id, length := leadingNumber(raw[at:])
		if length == 0 {
			return nil, false
		}
		ids = append(ids, id)
		switch at = skipBlank(raw, at+length); raw[at] {
		case ',':
		case ']':
			return ids, true
		default:
			return nil, false
		}
	}
}

// skipBlank is where the next byte is that is no white space. The last one, a bracket, is none.
func skipBlank(raw []byte, at int) int {
	for raw[at] <= ' ' {
		at++
	}
	return at
}

// leadingNumber reads the digits that a text begins with, and returns how many they are: 0 where there is none, or
// they are more than an id has.
func leadingNumber(text []byte) (number uint32, digits int) {
	const each, most = 0x0101010101010101, 10
	if len(text) >= 8 {
		w := binary.LittleEndian.Uint64(text) ^ each*'0' // a digit is its value
		others := (w&(each*0x7f) + each*(0x80-10) | w) & (each * 0x80)
		if digits = bits.TrailingZeros64(others) / 8; digits == 0 {
			return 0, 0
		}
		if digits < 8 {
			w <<= 64 - 8*digits // zeros before it
			w = (w*10 + w>>8) & 0x00ff00ff00ff00ff
			w = (w*100 + w>>16) & 0x0000ffff0000ffff
			w = (w*10000 + w>>32) & 0xffffffff
			return uint32(w), digits
		}
		digits = 0
	}
	n := uint64(0)
	for ; digits < len(text) && text[digits]-'0' < 10; digits++ {
		if n = 10*n + uint64(text[digits]-'0'); digits == most || n >= 1<<32 {
			return 0, 0
		}
	}
	return uint32(n), digits
}
