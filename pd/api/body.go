package api

import (
	"iter"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// Body is a JSON object as bytes, with the places of its fields. Decoding and
// encoding it again would reorder nested keys (the chat template sees them, so
// prefix hashes change), round 64-bit integers and re-escape text.
//
// Bodies are long, and each is held for as long as its answer takes: an edited body
// shares the bytes of what it was made from, and is sent without ever being put
// together.
type Body struct {
	source []byte        // as parsed; nil for a body that was made of nothing
	sum    uint64        // of source, see Sum; 0: it was not made
	long   jsonscan.Long // values of source
	edited bool
	fields []field
	keys   lengths // of the fields, and maybe of fields that were deleted
}

// lengths are those that keys have, a bit each (of 64). Most fields that are asked for are absent, and most of those are
// seen to be by it.
type lengths uint64

func lengthOf(key string) lengths { return 1 << (len(key) % 64) }

// field is one member of the object: its bytes, and where in them the value starts.
type field struct {
	key    string
	member []byte
	tail   *[][]byte // of a member in parts (SetParts): those behind the first; nil: it is whole
	value  int32     // a key is never longer than a body may be
	made   bool      // by an edit
}

// raw is the value, put together where it is in parts.
func (f *field) raw() Value {
	if f.tail == nil {
		return f.member[f.value:]
	}
	return f.joined()[f.value:]
}

func (f *field) joined() []byte { return f.appendTo(make([]byte, 0, f.len())) }

// parts are the pieces that make up the member.
func (f *field) parts(yield func([]byte) bool) {
	if !yield(f.member) || f.tail == nil {
		return
	}
	for _, part := range *f.tail {
		if !yield(part) {
			return
		}
	}
}

func (f *field) len() (n int) {
	for part := range f.parts {
		n += len(part)
	}
	return n
}

func (f *field) appendTo(to []byte) []byte {
	for part := range f.parts {
		to = append(to, part...)
	}
	return to
}

// Sum is a hash of the body as it stands, in each process the same: of one that was parsed by ParseBody without a
// look at its text, but for what was edited.
func (b Body) Sum() uint64 {
	if !b.edited && b.sum != 0 {
		return b.sum
	}
	h := xxhash.NewWithSeed(b.sum)
	for i := range b.fields {
		f := &b.fields[i]
		_, _ = h.WriteString(f.key) // a hash takes everything
		_, _ = h.Write([]byte{0})
		if f.made || b.sum == 0 {
			for part := range f.parts {
				_, _ = h.Write(part)
			}
		}
	}
	return h.Sum64()
}

// Source returns the bytes that the body was parsed from, without the edits since;
// callers must not change them.
func (b Body) Source() []byte {
	if b.source == nil {
		return b.Bytes()
	}
	return b.source
}

// Long are the long values of the bytes that the body was parsed from.
func (b Body) Long() Long { return b.long }

// Long are long strings and lists of numbers of a body, of which those need not look for the ends who walk its values
// again.
type Long = jsonscan.Long

// Len is the length of the body as it stands, in bytes.
func (b Body) Len() int {
	if !b.edited {
		return len(b.source)
	}
	n := len("{}") + max(0, len(b.fields)-1)
	for i := range b.fields {
		n += b.fields[i].len()
	}
	return n
}

// Bytes returns the body as it stands, put together anew if it was edited; callers must not
// change them.
func (b Body) Bytes() []byte {
	if !b.edited {
		return b.source
	}
	out := make([]byte, 0, b.Len())
	for part := range b.Parts() {
		out = append(out, part...)
	}
	return out
}

// Parts are the pieces that make up the body.
func (b Body) Parts() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if !b.edited {
			yield(b.source)
			return
		}
		before := jsonBegin
		for i := range b.fields {
			if !yield(before) {
				return
			}
			for part := range b.fields[i].parts {
				if !yield(part) {
					return
				}
			}
			before = jsonComma
		}
		if len(b.fields) == 0 && !yield(jsonBegin) {
			return
		}
		yield(jsonEnd)
	}
}

// What stands between the members of an object, which nobody changes.
var jsonBegin, jsonComma, jsonEnd = []byte("{"), []byte(","), []byte("}")

// textFields hold what a client says: the prompt, and what shapes it.
var textFields = []string{"messages", "prompt", "input", "system", "instructions", "tools", "documents", "chat_template"}

// WithoutText returns the body without what the client says, in memory of its own: the bytes that it was
// parsed from can be let go.
func (b Body) WithoutText() Body {
	rest := slices.DeleteFunc(slices.Clone(b.fields), func(f field) bool { return slices.Contains(textFields, f.key) })
	size := 0
	for i := range rest {
		size += rest[i].len()
	}
	all := make([]byte, 0, size)
	for i := range rest {
		f, start := &rest[i], len(all)
		all = f.appendTo(all)
		f.key, f.member, f.tail = strings.Clone(f.key), all[start:len(all):len(all)], nil
	}
	return Body{edited: true, fields: rest, keys: b.keys}
}

// Keys returns the keys in the order of the body.
func (b Body) Keys() []string {
	keys := make([]string, len(b.fields))
	for i, f := range b.fields {
		keys[i] = f.key
	}
	return keys
}

// Fields are the keys and the raw JSON of their values, in the order of the body.
func (b Body) Fields() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for i := range b.fields {
			if !yield(b.fields[i].key, b.fields[i].raw()) {
				return
			}
		}
	}
}

// Get returns the raw JSON of a field's value, nil if the field is absent. It is no method of values, and not written out
// where it is called: a request asks for some eighty fields, most of which are absent.
func (b *Body) Get(key string) Value {
	if b.keys>>(len(key)%64)&1 == 0 {
		return nil
	}
	if at := index(b.fields, key); at >= 0 {
		return b.fields[at].raw()
	}
	return nil
}

// index is the place of a field, -1 where it is absent.
func index(fields []field, key string) int {
	for i := range fields {
		if fields[i].key == key {
			return i
		}
	}
	return -1
}

// at is Get of a place: keys with dots between them.
func (b *Body) at(place string) Value {
	key, rest, deeper := strings.Cut(place, ".")
	value := b.Get(key)
	for deeper {
		key, rest, deeper = strings.Cut(rest, ".")
		value = value.Member(key)
	}
	return value
}
