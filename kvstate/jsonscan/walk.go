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
		s := from
		more, err := s.open('{', '}', "an object was expected")
		for more && err == nil {
			var m member
			if m, err = s.member(2); err != nil {
				break
			}
			if !yield(m.of(s.raw), nil) {
				return
			}
			more, err = s.more('}', errBrace)
		}
		if err == nil {
			err = s.end()
		}
		if err != nil {
			yield(Member{}, err)
		}
	}
}

// Elements are the elements of the array that a text is which was checked, or a part of one.
// An error comes last, as of CheckMembers.
func Elements(raw []byte) iter.Seq2[[]byte, error] { return elements(scanner{raw: raw, checked: true}) }

func elements(from scanner) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := from
		more, err := s.open('[', ']', "an array was expected")
		for more && err == nil {
			s.space()
			start := s.at
			if err = s.value(2); err != nil {
				break
			}
			if !yield(s.raw[start:s.at:s.at], nil) {
				return
			}
			more, err = s.more(']', errBracket)
		}
		if err == nil {
			err = s.end()
		}
		if err != nil {
			yield(nil, err)
		}
	}
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
