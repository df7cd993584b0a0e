package pd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/bits"
	"net"
	"unicode/utf8"
)

const (
	maxDepth  = 256  // nesting that a body may have; Python's own limit is near 1000
	maxFields = 1024 // fields that one object may have where we look them up
)

// ErrNotObject is returned for JSON that is valid but no object.
var ErrNotObject = errors.New("the body must be a JSON object")

// Body is a JSON object as bytes, with the places of its fields. Decoding and
// encoding it again would reorder nested keys (the chat template sees them, so
// prefix hashes change), round 64-bit integers and re-escape text.
//
// Bodies are long, and each is held for as long as its answer takes: an edited body
// shares the bytes of what it was made from, and is sent without ever being put
// together.
type Body struct {
	source []byte // as parsed; nil for a body that was made of nothing
	edited bool
	fields []field
}

// field is one member of the object: its bytes, and where in them the value starts.
type field struct {
	key    string
	member []byte
	value  int
}

func (f *field) raw() Value { return f.member[f.value:] }

// ParseBody checks that raw is one well-formed JSON object in UTF-8, nested at
// most 256 deep and without a key that appears twice: parsers disagree on which
// of the two counts. It keeps raw.
func ParseBody(raw []byte) (Body, error) {
	if !utf8.Valid(raw) {
		return Body{}, errors.New("the body is not valid UTF-8")
	}
	s := scanner{raw: raw}
	s.space()
	if s.at >= len(raw) {
		return Body{}, errors.New("the body is empty")
	}
	if raw[s.at] != '{' {
		if err := s.document(); err != nil {
			return Body{}, err
		}
		return Body{}, ErrNotObject
	}
	s.keep = true
	if err := s.document(); err != nil {
		return Body{}, err
	}
	if err := unique(s.fields); err != nil {
		return Body{}, err
	}
	return Body{source: raw, fields: s.fields}, nil
}

func unique(fields []field) error {
	if len(fields) > maxFields {
		return fmt.Errorf("the object has more than %d fields", maxFields)
	}
	seen := make(map[string]struct{}, len(fields))
	for _, f := range fields {
		if _, twice := seen[f.key]; twice {
			return fmt.Errorf("the field %s appears twice", quoteShort(f.key))
		}
		seen[f.key] = struct{}{}
	}
	return nil
}

// quoteShort names a client's key in an error without echoing much of it.
func quoteShort(key string) string {
	if len(key) > 40 {
		key = key[:40]
	}
	return fmt.Sprintf("%q", key)
}

// Source returns the bytes that the body was parsed from, without the edits since;
// nobody may change them.
func (b Body) Source() []byte {
	if b.source == nil {
		return b.Bytes()
	}
	return b.source
}

// Len is the length of the body as it stands, in bytes.
func (b Body) Len() int {
	if !b.edited {
		return len(b.source)
	}
	n := len("{}") + max(0, len(b.fields)-1)
	for i := range b.fields {
		n += len(b.fields[i].member)
	}
	return n
}

// Bytes returns the body as it stands, put together anew if it was edited; nobody may
// change them.
func (b Body) Bytes() []byte {
	if !b.edited {
		return b.source
	}
	out := make([]byte, 0, b.Len())
	for part := range b.parts() {
		out = append(out, part...)
	}
	return out
}

// parts are the pieces that make up the body.
func (b Body) parts() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if !b.edited {
			yield(b.source)
			return
		}
		before := []byte("{")
		for i := range b.fields {
			if !yield(before) || !yield(b.fields[i].member) {
				return
			}
			before = []byte(",")
		}
		if len(b.fields) == 0 && !yield([]byte("{")) {
			return
		}
		yield([]byte("}"))
	}
}

// Reader returns the body as a stream. It may be read more than once, by a Reader each.
func (b Body) Reader() io.Reader {
	if !b.edited {
		return bytes.NewReader(b.source)
	}
	parts := make(net.Buffers, 0, 2*len(b.fields)+2)
	for part := range b.parts() {
		parts = append(parts, part)
	}
	return &parts
}

// Keys returns the keys in the order of the body.
func (b Body) Keys() []string {
	keys := make([]string, len(b.fields))
	for i, f := range b.fields {
		keys[i] = f.key
	}
	return keys
}

// Get returns the raw JSON of a field's value, nil if the field is absent.
func (b Body) Get(key string) Value {
	for i := range b.fields {
		if b.fields[i].key == key {
			return b.fields[i].raw()
		}
	}
	return nil
}

// Edit replaces a field's value, or deletes the field when Value is nil.
type Edit struct {
	Key   string
	Value []byte // raw JSON
}

// With returns a new body with the edits made. Edited fields keep their place,
// new ones come last in the order of the edits, all other bytes of members are
// untouched.
func (b Body) With(edits ...Edit) Body {
	out := Body{source: b.source, edited: true, fields: make([]field, 0, len(b.fields)+len(edits))}
	for i := range b.fields {
		f := &b.fields[i]
		edit, found := lastEdit(edits, f.key)
		switch {
		case !found:
			out.fields = append(out.fields, *f)
		case edit.Value != nil:
			out.fields = append(out.fields, newField(f.key, f.member[:f.value], edit.Value))
		}
	}
	for i, e := range edits {
		if e.Value == nil || b.Get(e.Key) != nil {
			continue
		}
		if _, later := lastEdit(edits[i+1:], e.Key); later {
			continue
		}
		key, _ := json.Marshal(e.Key) // a string always marshals
		out.fields = append(out.fields, newField(e.Key, append(key, ':'), e.Value))
	}
	return out
}

// newField makes a member of its head, which is key and colon, and its value.
func newField(key string, head, value []byte) field {
	member := append(append(make([]byte, 0, len(head)+len(value)), head...), value...)
	return field{key: key, member: member, value: len(head)}
}

func lastEdit(edits []Edit, key string) (Edit, bool) {
	for i := len(edits) - 1; i >= 0; i-- {
		if edits[i].Key == key {
			return edits[i], true
		}
	}
	return Edit{}, false
}

// Value is the raw JSON of one value; nil is an absent one.
type Value []byte

// Null reports whether the value is absent or null.
func (v Value) Null() bool { return len(v) == 0 || v[0] == 'n' }

// String returns the text of a JSON string.
func (v Value) String() (string, bool) {
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	var s string
	err := json.Unmarshal(v, &s)
	return s, err == nil
}

// Int returns a JSON number that is a whole number.
func (v Value) Int() (int64, bool) {
	var n json.Number
	if len(v) == 0 || (v[0] != '-' && (v[0] < '0' || v[0] > '9')) || json.Unmarshal(v, &n) != nil {
		return 0, false
	}
	i, err := n.Int64()
	return i, err == nil
}

// Bool returns a JSON boolean.
func (v Value) Bool() (value, ok bool) {
	switch string(v) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// Object returns the value as a body of its own.
func (v Value) Object() (Body, bool) {
	if len(v) == 0 || v[0] != '{' {
		return Body{}, false
	}
	b, err := ParseBody(v)
	return b, err == nil
}

// Array reports whether the value is an array, and its raw elements. Elements
// share the value's bytes.
func (v Value) Array() (elements []Value, ok bool) {
	if len(v) == 0 || v[0] != '[' {
		return nil, false
	}
	s := scanner{raw: v, at: 1}
	for {
		s.space()
		if s.at < len(v) && (v[s.at] == ']' || v[s.at] == ',') {
			if v[s.at] == ']' {
				return elements, true
			}
			s.at++
			s.space()
		}
		start := s.at
		if s.value(1) != nil {
			return nil, false
		}
		elements = append(elements, v[start:s.at])
	}
}

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
