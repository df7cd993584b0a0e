package gateway

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"sync/atomic"

	"github.com/gofiber/fiber/v2/utils"
)

// Text has a space, a quote or an escape in so many bytes; what has none is an image or the
// like, whose tokens do not grow with its bytes.
const longestWord = 2048

// textKind is what countTokens takes a byte of a JSON value for.
type textKind uint8

const (
	blank textKind = iota // and control characters
	letter
	sign // a quote, too
	digit
	escape // a backslash
	first  // byte of a character beyond ASCII
	further
)

var textKinds = func() (k [256]textKind) {
	for c := range k {
		switch {
		case c >= 0xC0:
			k[c] = first
		case c >= 0x80:
			k[c] = further
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_':
			k[c] = letter
		case c >= '0' && c <= '9':
			k[c] = digit
		case c == '\\':
			k[c] = escape
		case c > ' ':
			k[c] = sign
		}
	}
	return k
}()

// Of a text of sampledFrom bytes or more sampleLength bytes are counted in each sampleEvery bytes, or in as many as
// make no more than mostSamples samples: some per cent less sure, and 16 times as fast, or more. Texts differ between
// their parts and less within one, so that shorter samples cost less than fewer would. TestRoughTokens_OfFiles says
// how sure they are.
const (
	sampledFrom  = 64 << 10
	sampleEvery  = 2 << 10
	sampleLength = 128
	mostSamples  = 64
)

// roughTokens is about how many tokens the text in a JSON value has. Of equal texts it is equal.
func roughTokens(value []byte) int {
	if len(value) < rememberedFrom {
		return countTokens(value)
	}
	if len(value) < sampledFrom {
		return counted.tokensOf(value)
	}
	every, n, looked := max(sampleEvery, len(value)/mostSamples), 0, 0
	for from := 0; from+2*sampleLength <= len(value); from += every {
		end := wordEnd(value[from : from+sampleLength]) // of the word before it the beginning is not known
		looked += sampleLength
		if end == sampleLength {
			end = 0
			if !hasWordEnd(value[max(0, from-longestWord):from]) {
				continue // in an image or the like, or at the beginning of the text
			}
		}
		n += countTokens(value[from+end : from+end+sampleLength])
	}
	return n * len(value) / looked
}

// rememberedFrom is from how many bytes on a text is counted once for all the requests that bring it, as each turn of
// a conversation brings those before it, and all requests of an agent its system prompt and tools.
const rememberedFrom = 256

var counted = textCounts{seed: maphash.MakeSeed()}

// textCounts remembers how many tokens texts of less than sampledFrom bytes have, by their hashes: a text is hashed at
// ten times the speed at which it is counted. A text takes the place of another, and nothing else is ever forgotten.
// Of two that have 56 bits of a hash in common, which nobody can bring about who does not know the seed, the second
// has the count of the first.
type textCounts struct {
	seed  maphash.Seed
	slots [4096]atomic.Uint64 // the place is of the lowest bits of the hash, the rest is its highest ones and the count
}

// countBits are the bits of a slot that hold a count, which is at most that of the bytes.
const countBits = 20

func (c *textCounts) tokensOf(text []byte) int {
	const countMask = 1<<countBits - 1
	hash := c.hashOf(text)
	slot := &c.slots[hash%uint64(len(c.slots))]
	if known := slot.Load(); (known^hash)>>countBits == 0 && known != 0 {
		return int(known & countMask)
	}
	n := countTokens(text)
	slot.Store(hash&^countMask | uint64(n))
	return n
}

// hashOf hashes a text by one call, where maphash.Bytes makes one for each 128 bytes of it.
func (c *textCounts) hashOf(text []byte) uint64 {
	return maphash.Comparable(c.seed, utils.UnsafeString(text))
}

// wordEnd is where the first word of a text ends, its length where none does.
func wordEnd(text []byte) int {
	for i, c := range text {
		if k := textKinds[c]; c == '"' || k == blank || k == escape || k == first {
			return i
		}
	}
	return len(text)
}

// hasWordEnd reports whether a word ends in a text by what ends most of them: images have thousands of bytes to be
// looked through for each sample.
func hasWordEnd(text []byte) bool {
	return bytes.IndexByte(text, ' ') >= 0 || bytes.IndexByte(text, '\\') >= 0 || bytes.IndexByte(text, '"') >= 0
}

// countTokens is about how many tokens the text in a JSON value has, by what tokenizers
// commonly make one token of: a word with the space before it, up to six letters of a longer
// one, a digit, two signs, a line end, half of a character beyond ASCII. It needs not be right,
// only wrong by the same share for texts of different kinds.
//
// It looks at 64 bytes at once where they have an end of a word: where words end cannot be foretold,
// and a loop over their letters would take one wrong branch for each.
func countTokens(value []byte) (n int) {
	word, single := 0, 0 // where the word began; before that place runs are counted one by one
	for i := 0; i < len(value); {
		if i >= single && i+64 <= min(len(value), word+longestWord) {
			if tokens, length := countBlock(value[i : i+64]); length > 0 {
				n, i = n+tokens, i+length
				word = i
				continue
			}
			single = i + 64
		}
		var tokens int
		tokens, i, word = countRun(value, i, word)
		n += tokens
	}
	return n
}

// perWord is how many letters of a word one token has.
const perWord = 6

// countRun counts the run of letters or signs, or the other byte, that begins at i, of a word that
// began before. It returns where the next run begins, and of what word that is.
func countRun(value []byte, i, word int) (tokens, next, nextWord int) {
	k, from, long := textKinds[value[i]], i, word+longestWord
	quoted := value[i] == '"'
	for i++; (k == letter || k == sign) && i < len(value) && textKinds[value[i]] == k; i++ {
		quoted = quoted || value[i] == '"'
	}
	if from >= long && !quoted && (k == letter || k == sign || k == digit) {
		return 0, i, word
	}
	run := min(i, long) - from
	switch k {
	case letter:
		tokens = (run + perWord - 1) / perWord
	case sign:
		tokens = (max(run, 1) + 1) / 2
	case digit, first:
		tokens = 1
	case escape: // what is escaped is one sign
		tokens = 1
		if i < len(value) && value[i] == 'u' {
			i += 4
		}
		i++
	}
	if quoted || k != letter && k != sign && k != digit {
		word = i
	}
	return tokens, i, word
}

// countBlock counts what of 64 bytes stands before the first escape, or before the last word where
// there is none, and returns how many bytes that is: 0 where no word ends.
func countBlock(block []byte) (tokens, length int) {
	k := kindsIn(block)
	if length = bits.TrailingZeros64(k.escapes); length == 64 {
		length = bits.Len64(k.ends)
	}
	if length == 0 {
		return 0, 0
	}
	within := ^uint64(0) >> (64 - length)
	return bits.OnesCount64(k.singles&within) + countRuns(k.letters&within, perWord) + countRuns(k.signs&within, 2), length
}

// countRuns counts the runs of bits, a longer one once for each so many bits of it that begin.
func countRuns(set uint64, each int) (n int) {
	goesOn := set >> each // bits of which the run goes on so far
	for i := 1; i < each; i++ {
		goesOn &= set >> i
	}
	for begins := set &^ (set << 1); begins != 0; begins = begins & goesOn << each {
		n += bits.OnesCount64(begins)
	}
	return n
}

// kindMasks says of which kind each of 64 bytes is: the first is the lowest bit.
type kindMasks struct {
	letters, signs, escapes uint64
	singles                 uint64 // a token each: digits, and first bytes of characters beyond ASCII
	ends                    uint64 // of words: blanks and characters beyond ASCII
}

func kindsIn(block []byte) (k kindMasks) {
	for i := 0; i < 64; i += 8 {
		b := binary.LittleEndian.Uint64(block[i:])
		ascii := b & lowBits
		lower := ascii | 0x20*everyByte
		letters := from(lower, 'a')&^from(lower, 'z'+1) | equal(ascii, '_')
		k.letters |= gather(letters&^b) << i
		k.singles |= gather(from(ascii, '0')&^from(ascii, '9'+1)&^b|b&(b<<1)) << i
		k.escapes |= gather(equal(ascii, '\\')&^b) << i
		k.ends |= gather(^from(ascii, ' '+1)|b) << i
	}
	k.signs = ^(k.letters | k.singles | k.escapes | k.ends)
	return k
}

const (
	everyByte = 0x0101010101010101
	highBits  = 0x80 * everyByte
	lowBits   = 0x7F * everyByte
)

// from has the high bit of each byte set that is at least c. All are of ASCII.
func from(ascii uint64, c byte) uint64 { return ascii + (0x80-uint64(c))*everyByte }

// equal has the high bit of each byte set that is c. All are of ASCII.
func equal(ascii uint64, c byte) uint64 { return ^((ascii ^ uint64(c)*everyByte) + lowBits) }

// gather brings the high bits of eight bytes together, that of the first as the lowest.
func gather(b uint64) uint64 { return b & highBits >> 7 * 0x0102040810204080 >> 56 }
