package jsonscan

import (
	"bytes"
	"iter"
)

// Long are the long strings and lists of numbers of a text, as they lie in it, which CheckKnownMembers finds. Who walks
// the text or a part of it again need not look for their ends, each time from their beginning on: most of a request is
// one string, or a few, and most of an answer with ids one list. Of any other bytes it knows nothing, and the walk is
// the usual one, as it is of nil.
type Long [][]byte

const (
	longValue = 8 << 10 // bytes, with the quotes or brackets
	mostLong  = 16      // are known
	// aside is how much of a value is looked at before it may be a long one.
	aside = 64
)

// Members is Members of the text, or of a part of it.
func (l Long) Members(raw []byte) iter.Seq2[Member, error] {
	return members(scanner{raw: raw, checked: true, long: l})
}

// Elements is Elements of a part of the text.
func (l Long) Elements(raw []byte) iter.Seq2[[]byte, error] {
	return elements(scanner{raw: raw, checked: true, long: l})
}

// Cursor is NewCursor of the text, or of a part of it, which was checked and is not checked again.
func (l Long) Cursor(raw []byte) Cursor {
	return Cursor{scanner: scanner{raw: raw, checked: true, long: l}, depth: 1}
}

// ValueEnd is ValueEnd in a part of the text.
func (l Long) ValueEnd(raw []byte, at int) (int, error) {
	s := scanner{raw: raw, at: at, checked: true, long: l}
	err := s.value(1)
	return s.at, err
}

// Note adds a value that the caller knows to be well-formed, if it is a long one.
func (l *Long) Note(value []byte) {
	if l != nil && len(value) >= longValue && len(*l) < mostLong {
		*l = append(*l, value[:len(value):len(value)])
	}
}

// length is how long the string or the list is that a text begins with, 0 where that is not known. The bytes must be the
// same ones, and not others that are equal.
func (l Long) length(text []byte) int {
	if len(text) < longValue || bytes.IndexByte(text[1:aside], '"') >= 0 {
		return 0
	}
	for _, s := range l {
		if &s[0] == &text[0] && len(s) <= len(text) {
			return len(s)
		}
	}
	return 0
}
