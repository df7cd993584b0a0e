package jsonscan

import "iter"

// Member is one member of an object. Its slices share the bytes of the text.
type Member struct {
	Key   []byte // as it is escaped, without its quotes
	Value []byte
	Text  []byte // all of it, from the first quote of the key to the end of the value
}

// Check says what is wrong with a text, unless it is one JSON value.
func Check(raw []byte) error {
	s := scanner{raw: raw}
	if err := s.value(1); err != nil {
		return err
	}
	return s.end()
}

// CheckMembers are the members of the object that a text is. Where it is none, or not well
// formed from some place on, an error comes last.
func CheckMembers(raw []byte) iter.Seq2[Member, error] { return members(scanner{raw: raw}) }

// CheckKnownMembers is CheckMembers of a text of which the caller knows whether it is plain (Sum), and some long values
// where it is a part of another one that was checked. Other long values that it comes by are added to found.
func CheckKnownMembers(raw []byte, plain bool, known Long, found *Long) iter.Seq2[Member, error] {
	return members(scanner{raw: raw, plain: plain, long: known, found: found})
}

// Members is CheckMembers for a text that was checked, or a part of one.
func Members(raw []byte) iter.Seq2[Member, error] { return members(scanner{raw: raw, checked: true}) }

func members(from scanner) iter.Seq2[Member, error] {
	return func(yield func(Member, error) bool) {
		w := walk{scanner: from}
		for w.nextMember() {
			if !yield(w.entry, w.err) { // the one call of it: then the compiler inlines loops
				return
			}
		}
	}
}

// Elements are the elements of the array that a text is which was checked, or a part of one.
// An error comes last, as of CheckMembers.
func Elements(raw []byte) iter.Seq2[[]byte, error] { return elements(scanner{raw: raw, checked: true}) }

func elements(from scanner) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		w := walk{scanner: from}
		for w.nextElement() {
			if !yield(w.entry.Value, w.err) { // as in members
				return
			}
		}
	}
}

// walk goes through the entries of an object or an array.
type walk struct {
	scanner
	begun bool
	entry Member // of an array only its value
	err   error  // comes last, with an empty entry
}

// nextMember reports whether there is one more member, or an error.
func (w *walk) nextMember() bool {
	if w.err != nil {
		return false
	}
	more, err := w.hasEntry('{', '}', "an object was expected", errBrace)
	var key, keyEnd, value int
	if more {
		if key, keyEnd, err = w.key(); err == nil {
			w.space()
			value = w.at
			err = w.value(2)
		}
	}
	if !more || err != nil {
		return w.endsWith(err)
	}
	text := w.raw[key:w.at:w.at]
	w.entry = Member{Key: text[1 : keyEnd-1-key], Value: text[value-key:], Text: text}
	return true
}

// nextElement is nextMember of an array.
func (w *walk) nextElement() bool {
	if w.err != nil {
		return false
	}
	more, err := w.hasEntry('[', ']', "an array was expected", errBracket)
	var start int
	if more {
		w.space()
		start = w.at
		err = w.value(2)
	}
	if !more || err != nil {
		return w.endsWith(err)
	}
	w.entry.Value = w.raw[start:w.at:w.at]
	return true
}

// hasEntry reports whether one more entry comes, at first behind the opening bracket.
func (w *walk) hasEntry(opening, closing byte, none, unclosed string) (more bool, err error) {
	if w.begun {
		return w.more(closing, unclosed)
	}
	w.begun = true
	return w.open(opening, closing, none)
}

// endsWith reports whether an error comes last, be it of what follows the object or array.
func (w *walk) endsWith(err error) bool {
	if err == nil {
		err = w.end()
	}
	w.entry, w.err = Member{}, err
	return err != nil
}

// ValueEnd is the offset after the value that starts at raw[at] of a text that was checked;
// more may follow it.
func ValueEnd(raw []byte, at int) (int, error) {
	s := scanner{raw: raw, at: at, checked: true}
	err := s.value(1)
	return s.at, err
}

// SkipSpace is the offset of the first byte from raw[at] on that is no white space.
func SkipSpace(raw []byte, at int) int {
	s := scanner{raw: raw, at: at}
	s.space()
	return s.at
}
