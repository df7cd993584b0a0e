package api

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// maxDepth is the nesting that a body may have; Python's own limit is near 1000.
const maxDepth = 256

// scanner walks JSON once. It recurses, but never deeper than maxDepth.
type scanner struct {
	raw    []byte
	at     int
	keep   bool // remember the fields of the outermost object
	fields []field
}

func (s *scanner) document() error {
	if err := s.value(1); err != nil {
		return err
	}
	s.space()
	if s.at != len(s.raw) {
		return s.bad("data after the end of the JSON document")
	}
	return nil
}

func (s *scanner) bad(what string) error {
	return fmt.Errorf("malformed JSON at byte %d: %s", s.at, what)
}

func (s *scanner) space() {
	for s.at < len(s.raw) {
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

func (s *scanner) value(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("the JSON is nested deeper than %d", maxDepth)
	}
	switch c := s.next(); {
	case c == '{':
		return s.object(depth)
	case c == '[':
		return s.array(depth)
	case c == '"':
		return s.str()
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return s.bad("a value was expected")
}

func (s *scanner) object(depth int) error {
	keep := s.keep && depth == 1
	s.at++
	if s.next() == '}' {
		s.at++
		return nil
	}
	for {
		if s.next() != '"' {
			return s.bad("a key was expected")
		}
		start := s.at
		if err := s.str(); err != nil {
			return err
		}
		keyEnd := s.at
		if s.next() != ':' {
			return s.bad("a colon was expected")
		}
		s.at++
		s.space()
		value := s.at
		if err := s.value(depth + 1); err != nil {
			return err
		}
		if keep {
			key, ok := Value(s.raw[start:keyEnd]).String()
			if !ok {
				return s.bad("a key is no valid string")
			}
			if len(s.fields) == maxFields {
				return fmt.Errorf("the object has more than %d fields", maxFields)
			}
			s.fields = append(s.fields, field{key: key, member: s.raw[start:s.at:s.at], value: value - start})
		}
		switch s.next() {
		case ',':
			s.at++
		case '}':
			s.at++
			return nil
		default:
			return s.bad("a comma or a closing brace was expected")
		}
	}
}

func (s *scanner) array(depth int) error {
	s.at++
	if s.next() == ']' {
		s.at++
		return nil
	}
	for {
		if err := s.value(depth + 1); err != nil {
			return err
		}
		switch s.next() {
		case ',':
			s.at++
		case ']':
			s.at++
			return nil
		default:
			return s.bad("a comma or a closing bracket was expected")
		}
	}
}

const (
	everyByte = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// str skips a string. Prompts are long strings, so eight bytes are tested at a
// time for the three that matter: a quote, a backslash, a control character.
func (s *scanner) str() error {
	s.at++
	for {
		for s.at+8 <= len(s.raw) {
			w := binary.LittleEndian.Uint64(s.raw[s.at:])
			quote := w ^ everyByte*'"'
			slash := w ^ everyByte*'\\'
			stop := ((w-everyByte*0x20)&^w | (quote-everyByte)&^quote | (slash-everyByte)&^slash) & highBits
			if stop != 0 {
				s.at += bits.TrailingZeros64(stop) / 8
				break
			}
			s.at += 8
		}
		if s.at >= len(s.raw) {
			return s.bad("a string does not end")
		}
		switch c := s.raw[s.at]; {
		case c == '"':
			s.at++
			return nil
		case c == '\\':
			if err := s.escape(); err != nil {
				return err
			}
		case c < 0x20:
			return s.bad("a control character stands in a string")
		default:
			s.at++
		}
	}
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
	if s.raw[s.at] == '-' {
		s.at++
	}
	switch {
	case s.at < len(s.raw) && s.raw[s.at] == '0':
		s.at++
	case !s.digits():
		return s.bad("a number is not valid")
	}
	if s.at < len(s.raw) && s.raw[s.at] == '.' {
		s.at++
		if !s.digits() {
			return s.bad("a number is not valid")
		}
	}
	if s.at < len(s.raw) && (s.raw[s.at] == 'e' || s.raw[s.at] == 'E') {
		s.at++
		if s.at < len(s.raw) && (s.raw[s.at] == '+' || s.raw[s.at] == '-') {
			s.at++
		}
		if !s.digits() {
			return s.bad("a number is not valid")
		}
	}
	return nil
}

// digits skips decimal digits and reports whether there was one.
func (s *scanner) digits() bool {
	start := s.at
	for s.at < len(s.raw) && s.raw[s.at] >= '0' && s.raw[s.at] <= '9' {
		s.at++
	}
	return s.at > start
}

func (s *scanner) literal(word string) error {
	if len(s.raw)-s.at < len(word) || string(s.raw[s.at:s.at+len(word)]) != word {
		return s.bad("a value was expected")
	}
	s.at += len(word)
	return nil
}

// IsJSON reports whether data is one well-formed JSON value.
func IsJSON(data []byte) bool {
	s := scanner{raw: data}
	return s.document() == nil
}
