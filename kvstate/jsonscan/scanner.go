package jsonscan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// MaxDepth is how deep a text may be nested; Python's own limit is near 1000.
const MaxDepth = 256

// scanner walks a text once.
type scanner struct {
	raw []byte
	at  int
	// checked texts have strings that need no second look.
	checked bool
	// plain texts have no control characters, see Sum.
	plain bool
	long  Long  // of the text, or one that it is a part of, where it was checked
	found *Long // what is found; nil: nothing is noted
}

// What was expected after an entry of an object or an array.
const (
	errBrace   = "a comma or a closing brace was expected"
	errBracket = "a comma or a closing bracket was expected"
)

func (s *scanner) bad(what string) error {
	return fmt.Errorf("malformed JSON at byte %d: %s", s.at, what)
}

// end refuses what follows the value that the text is.
func (s *scanner) end() error {
	s.space()
	if s.at != len(s.raw) {
		return s.bad("data after the end of the JSON document")
	}
	return nil
}

func (s *scanner) space() {
	for s.at < len(s.raw) && s.raw[s.at] <= ' ' {
		switch s.raw[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there, 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.at >= len(s.raw) {
		return 0
	}
	return s.raw[s.at]
}

// value skips a value of the given depth.
func (s *scanner) value(depth int) error {
	entered, err := s.begin(depth)
	if err != nil || entered == 0 {
		return err
	}
	return s.leave(entered == '{', depth)
}

// leave skips what is left of an object or an array of the given depth, from its first entry on. What that goes into is
// a bit each, and not a call: deeper than a few dozen calls a processor foretells no return, and each bracket took
// 20 ns.
func (s *scanner) leave(object bool, outside int) error {
	var around depths // that are objects, of what is around the innermost one
	for depth := outside + 1; ; {
		if object {
			if _, _, err := s.key(); err != nil {
				return err
			}
		}
		entered, err := s.begin(depth)
		if err != nil {
			return err
		}
		if entered != 0 {
			around.set(depth-1, object)
			object = entered == '{'
			depth++
			continue
		}
		for s.next() != ',' {
			if err := s.closing(object); err != nil {
				return err
			}
			if depth--; depth == outside {
				return nil
			}
			object = around.has(depth - 1)
		}
		s.at++
	}
}

// closing skips the last bracket of an object, or of an array, which comes next.
func (s *scanner) closing(object bool) error {
	switch c := s.next(); {
	case c == '}' && object, c == ']' && !object:
		s.at++
		return nil
	case object:
		return s.bad(errBrace)
	}
	return s.bad(errBracket)
}

// depths is a set of depths, from 1 to MaxDepth.
type depths [MaxDepth / 64]uint64

func (d *depths) set(depth int, to bool) {
	word, bit := &d[(depth-1)/64], uint64(1)<<((depth-1)%64)
	if *word &^= bit; to {
		*word |= bit
	}
}

func (d *depths) has(depth int) bool { return d[(depth-1)/64]>>((depth-1)%64)&1 == 1 }

// begin skips the value that comes next, of the given depth; or it goes into it, to its first entry, and returns its
// first bracket.
func (s *scanner) begin(depth int) (entered byte, err error) {
	if depth > MaxDepth {
		return 0, fmt.Errorf("the JSON is nested deeper than %d", MaxDepth)
	}
	entry := false
	c := s.next()
	switch {
	case c == '"':
		if s.skipShort() {
			return 0, nil
		}
		return 0, s.longer()
	case c == '{':
		entry, err = s.open('{', '}', "")
	case c == '[':
		if s.numbers(depth) {
			return 0, nil
		}
		entry, err = s.open('[', ']', "")
	case c == '-' || c >= '0' && c <= '9':
		return 0, s.number()
	case c == 't':
		return 0, s.literal("true")
	case c == 'f':
		return 0, s.literal("false")
	case c == 'n':
		return 0, s.literal("null")
	default:
		return 0, s.bad("a value was expected")
	}
	if !entry {
		c = 0
	}
	return c, err
}

// skipLong skips a long value whose end is known, and reports whether one comes next.
func (s *scanner) skipLong() bool {
	if len(s.long) == 0 {
		return false
	}
	n := s.long.length(s.raw[s.at:])
	s.at += n
	return n > 0
}

// numbers skips an array of the given depth that begins with a number, where it is one of whole numbers, or a long one
// whose end is known. Most other arrays begin with something else, and cost no more than a look at that.
func (s *scanner) numbers(depth int) bool {
	next := s.at + 1
	if next >= len(s.raw) || s.raw[next] < '0' || s.raw[next] > '9' || depth >= MaxDepth {
		return false
	}
	if s.skipLong() {
		return true
	}
	end := next + NumbersLength(s.raw[next:])
	if end == next || end >= len(s.raw) || s.raw[end] != ']' {
		return false
	}
	s.found.Note(s.raw[s.at : end+1])
	s.at = end + 1
	return true
}

// open skips the first bracket of an object or an array, and the last one of an empty one.
// It reports whether there is an entry.
func (s *scanner) open(bracket, closing byte, expected string) (entry bool, err error) {
	if s.next() != bracket {
		return false, s.bad(expected)
	}
	s.at++
	if s.next() == closing {
		s.at++
		return false, nil
	}
	return true, nil
}

// more skips what follows an entry, and reports whether it was a comma.
func (s *scanner) more(closing byte, expected string) (entry bool, err error) {
	switch s.next() {
	case ',':
		s.at++
		return true, nil
	case closing:
		s.at++
		return false, nil
	}
	return false, s.bad(expected)
}

// key skips the key of a member, and the colon, and returns where the key is, with its quotes.
func (s *scanner) key() (begin, end int, err error) {
	if s.next() != '"' {
		return 0, 0, s.bad("a key was expected")
	}
	begin = s.at
	if !s.skipShort() {
		if err := s.longer(); err != nil {
			return 0, 0, err
		}
	}
	end = s.at
	if s.next() != ':' {
		return 0, 0, s.bad("a colon was expected")
	}
	s.at++
	return begin, end, nil
}

const (
	everyByte = 0x0101010101010101
	highBits  = everyByte << 7
)

// controlFree is how many bytes of a part of the text come before its first control character.
func (s *scanner) controlFree(text []byte) int {
	at := 0
	if s.plain {
		at = len(text)
	}
	for ; at+32 <= len(text); at += 32 {
		t := text[at : at+32]
		if controls(t)|controls(t[8:])|controls(t[16:])|controls(t[24:]) != 0 {
			break
		}
	}
	for ; at+8 <= len(text); at += 8 {
		if found := controls(text[at:]); found != 0 {
			return at + bits.TrailingZeros64(found)/8
		}
	}
	for at < len(text) && text[at] >= ' ' {
		at++
	}
	return at
}

// controls has the highest bit of each of eight bytes set that is a control character. Bytes after the
// first of them may be marked too.
func controls(eight []byte) uint64 {
	w := binary.LittleEndian.Uint64(eight)
	return (w - everyByte*' ') &^ w & highBits
}

// checkedString skips a string of a text that was checked: it ends at the first quote that
// an even number of backslashes precede.
func (s *scanner) checkedString() error {
	for from := s.at + 1; ; {
		i := bytes.IndexByte(s.raw[from:], '"')
		if i < 0 {
			return s.bad("a string does not end")
		}
		quote := from + i
		escapes := quote
		for escapes > s.at+1 && s.raw[escapes-1] == '\\' {
			escapes--
		}
		from = quote + 1
		if (quote-escapes)%2 == 0 {
			s.at = from
			return nil
		}
	}
}

// skipShort skips a string of up to 31 bytes without an escape, as most are, keys above all, and reports whether one
// comes next. A search for its end is a call or two.
func (s *scanner) skipShort() bool {
	const most = 32
	raw := s.raw
	for at, end := s.at+1, min(s.at+1+most, len(raw)); at+8 <= end; at += 8 {
		w := binary.LittleEndian.Uint64(raw[at : at+8])
		// A quote is the only character from a blank on that is less than one behind the exclusive or.
		backslash := w ^ everyByte*'\\'
		odd := (((w^everyByte*('"'^' '))-everyByte*(' '+1))&^w | (backslash-everyByte)&^backslash) & highBits
		if odd == 0 {
			continue
		}
		at += bits.TrailingZeros64(odd) / 8 // only bytes behind the first of them may be marked and be none
		if raw[at] != '"' {
			return false
		}
		s.at = at + 1
		return true
	}
	return false
}

// longer skips a string that skipShort does not. Prompts are long strings, so quotes and backslashes are looked for
// as far as they are away, and each of them once.
func (s *scanner) longer() error {
	if s.skipLong() {
		return nil
	}
	if s.checked {
		return s.checkedString()
	}
	begin := s.at
	s.at++
	quote, backslash := 0, 0 // the next ones, where they are not behind
	for {
		if quote < s.at {
			quote = s.find('"', len(s.raw))
		}
		if backslash < s.at {
			backslash = s.find('\\', quote)
		}
		if free := s.at + s.controlFree(s.raw[s.at:backslash]); free < backslash {
			s.at = free
			return s.bad("a control character stands in a string")
		}
		s.at = backslash
		switch {
		case backslash < quote:
			if err := s.escape(); err != nil {
				return err
			}
		case quote == len(s.raw):
			return s.bad("a string does not end")
		default:
			s.at++
			s.found.Note(s.raw[begin:s.at])
			return nil
		}
	}
}

// find is where a byte comes next before a place, that place where it does not.
func (s *scanner) find(c byte, before int) int {
	if i := bytes.IndexByte(s.raw[s.at:before], c); i >= 0 {
		return s.at + i
	}
	return before
}

func (s *scanner) escape() error {
	if s.at+1 >= len(s.raw) {
		return s.bad("a string does not end")
	}
	switch s.raw[s.at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at += 2
		return nil
	case 'u':
		if s.at+6 <= len(s.raw) && isHex(s.raw[s.at+2:s.at+6]) {
			s.at += 6
			return nil
		}
	}
	return s.bad("an escape is not valid")
}

func isHex(digits []byte) bool {
	for _, c := range digits {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return false
		}
	}
	return true
}

func (s *scanner) number() error {
	raw, at := s.raw, s.at
	if raw[at] == '-' {
		at++
	}
	begin := at
	if at = digitsEnd(raw, at); at > begin+1 && raw[begin] == '0' { // which no other digit follows
		at = begin + 1
	}
	is := at > begin
	if is && at < len(raw) && raw[at] == '.' {
		begin = at + 1
		at = digitsEnd(raw, begin)
		is = at > begin
	}
	if is && at < len(raw) && (raw[at] == 'e' || raw[at] == 'E') {
		if at++; at < len(raw) && (raw[at] == '+' || raw[at] == '-') {
			at++
		}
		begin = at
		at = digitsEnd(raw, begin)
		is = at > begin
	}
	s.at = at
	if !is {
		return s.bad("a number is not valid")
	}
	return nil
}

// digitsEnd is where the decimal digits end that stand at a place.
func digitsEnd(raw []byte, at int) int {
	for at < len(raw) && raw[at]-'0' <= 9 {
		at++
	}
	return at
}

func (s *scanner) literal(word string) error {
	if len(s.raw)-s.at < len(word) || string(s.raw[s.at:s.at+len(word)]) != word {
		return s.bad("a value was expected")
	}
	s.at += len(word)
	return nil
}

// NumbersLength is how long a list of whole numbers and commas between them is that a text begins with, as JSON has
// them, up to the first byte that is neither: 0 where there is none. Lists of ids are long, so eight bytes are
// tested at a time.
func NumbersLength(text []byte) (length int) {
	at := 0
	behind := uint64(highBits >> 56) // of the first byte: a number begins there, as behind a comma
	for ; at+8 <= len(text); at += 8 {
		w := binary.LittleEndian.Uint64(text[at:])
		commas := ^((w ^ everyByte*',') + everyByte*0x7f | w) & highBits
		digits := ^((w ^ everyByte*'0') + everyByte*(0x80-10) | w) & highBits
		if commas|digits != highBits {
			break
		}
		begins := commas<<8 | behind
		zeros := ^((w ^ everyByte*'0') + everyByte*0x7f) & begins
		if commas&begins != 0 || zeros != 0 && longZero(text[at:], zeros) {
			return 0
		}
		behind = commas >> 56
	}
	begin := behind != 0
	for ; at < len(text); at++ {
		switch c := text[at]; {
		case c == ',' && !begin:
			begin = true
		case c >= '0' && c <= '9' && !(begin && longZero(text[at:at+min(2, len(text)-at)], highBits>>56)):
			begin = false
		case c == ',' || c >= '0' && c <= '9' || begin:
			return 0
		default:
			return at
		}
	}
	if begin {
		return 0
	}
	return at
}

// longZero reports whether a digit stands behind one of the zeros with which numbers begin: those whose
// highest bit is set, of the first eight bytes.
func longZero(raw []byte, zeros uint64) bool {
	for ; zeros != 0; zeros &= zeros - 1 {
		next := bits.TrailingZeros64(zeros)/8 + 1
		if next < len(raw) && raw[next] >= '0' && raw[next] <= '9' && raw[next-1] == '0' {
			return true
		}
	}
	return false
}
