package loadtest

import "math"

// blockTokens is the length of one block of text, and Mooncake's block size.
const blockTokens = 512

// A passage is text still to be written out, in blocks of 512 tokens whose text
// depends on nothing but the block's key. Two passages whose leading keys are
// equal therefore begin with the same bytes, and blocks with different keys
// differ within their first eight words.
type passage struct {
	keys   []uint64 // one per block
	tokens int      // the last block is cut to it
}

// newPassage returns a passage of tokens tokens whose block keys follow from key.
func newPassage(key uint64, tokens int) passage {
	keys := make([]uint64, (tokens+blockTokens-1)/blockTokens)
	for i := range keys {
		keys[i] = mix(key + uint64(i))
	}
	return passage{keys: keys, tokens: tokens}
}

// appendText writes the passage to dst. Each word but dst's first has a space
// before it, so a passage that continues another adds to its bytes.
func (p passage) appendText(dst []byte, wordsPerToken float64) []byte {
	left := p.tokens
	for _, key := range p.keys {
		tokens := min(left, blockTokens)
		words := max(1, int(math.Round(float64(tokens)*wordsPerToken)))
		dst = appendBlock(dst, key, words)
		left -= tokens
	}
	return dst
}

// appendBlock draws n words by SplitMix64 started at key: eight words, of one byte
// each, from every output. The first output is a bijection of the key, so
// different keys cannot agree in all of their first eight words.
func appendBlock(dst []byte, key uint64, n int) []byte {
	var bits uint64
	for i := range n {
		if i%8 == 0 {
			key += 0x9e3779b97f4a7c15
			bits = mix(key)
		}
		if len(dst) > 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, vocabulary[byte(bits)]...)
		bits >>= 8
	}
	return dst
}

// mix is the output function of SplitMix64 (Steele, Lea, Flood: "Fast Splittable
// Pseudorandom Number Generators", OOPSLA 2014), a bijection of 64-bit numbers.
func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}
