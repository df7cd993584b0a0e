package api

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// maxFields is how many fields one object may have where we look them up.
const maxFields = 1024

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
	source []byte        // as parsed; nil for a body that was made of nothing
	sum    uint64        // of source, see Sum; 0: it was not made
	long   jsonscan.Long // values of source
	edited bool
	fields []field
}

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
	return f.appendTo(make([]byte, 0, f.len()))[f.value:]
}

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

// ParseBody checks that raw is one well-formed JSON object in UTF-8, nested at
// most 256 deep and without a key that appears twice: parsers disagree on which
// of the two counts. It keeps raw.
func ParseBody(raw []byte) (Body, error) {
	sum, plain := jsonscan.Sum(raw)
	if !plain && !isUTF8(raw) {
		return Body{}, errNotUTF8
	}
	b, err := parseObject(raw, plain, nil)
	b.sum = sum
	return b, err
}

// parseAround is ParseBody of a text of which a list of numbers, raw[from:end], has been read; end 0: none has.
func parseAround(raw []byte, from, end int) (Body, error) {
	if end == 0 {
		return ParseBody(raw)
	}
	_, before := jsonscan.Sum(raw[:from])
	_, behind := jsonscan.Sum(raw[end:])
	plain := before && behind
	if !plain && !isUTF8(raw) {
		return Body{}, errNotUTF8
	}
	var list Long
	list.Note(raw[from:end])
	b, err := parseObject(raw, plain, list)
	b.long = append(b.long, list...)
	return b, err
}

var errNotUTF8 = errors.New("the body is not valid UTF-8")

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

// isUTF8 is utf8.Valid, which reads a text byte by byte behind its first character beyond ASCII: most prompts
// have a few.
func isUTF8(text []byte) bool {
	for {
		text = text[asciiLength(text):]
		if len(text) == 0 {
			return true
		}
		for len(text) > 0 && text[0] >= utf8.RuneSelf {
			r, size := utf8.DecodeRune(text)
			if r == utf8.RuneError && size == 1 {
				return false
			}
			text = text[size:]
		}
	}
}

// asciiLength is how many bytes of ASCII a text begins with.
func asciiLength(text []byte) int {
	const highBits = 0x8080808080808080
	at := 0
	for ; at+32 <= len(text); at += 32 {
		t := text[at : at+32]
		w := binary.LittleEndian.Uint64(t) | binary.LittleEndian.Uint64(t[8:]) | binary.LittleEndian.Uint64(t[16:]) | binary.LittleEndian.Uint64(t[24:])
		if w&highBits != 0 {
			break
		}
	}
	for at+8 <= len(text) {
		high := binary.LittleEndian.Uint64(text[at:]) & highBits
		if high != 0 {
			return at + bits.TrailingZeros64(high)/8
		}
		at += 8
	}
	for at < len(text) && text[at] < utf8.RuneSelf {
		at++
	}
	return at
}

// parseObject is ParseBody of what is known to be UTF-8, and plain or not, and of which long values may be known.
func parseObject(raw []byte, plain bool, known Long) (Body, error) {
	first := jsonscan.SkipSpace(raw, 0)
	if first >= len(raw) {
		return Body{}, errors.New("the body is empty")
	}
	if raw[first] != '{' {
		if err := jsonscan.Check(raw); err != nil {
			return Body{}, err
		}
		return Body{}, ErrNotObject
	}
	var long *Long // short bodies need no memory for it
	if len(raw) >= longBody {
		long = new(Long)
	}
	var room [usualFields]field
	fields := room[:0]
	for m, err := range jsonscan.CheckKnownMembers(raw, plain, known, long) {
		if err != nil {
			return Body{}, err
		}
		if len(fields) == maxFields {
			return Body{}, fmt.Errorf("the object has more than %d fields", maxFields)
		}
		key := usualKey(m.Key)
		if key == "" {
			var ok bool
			if key, ok = Value(m.Text[:len(m.Key)+len(`""`)]).String(); !ok {
				return Body{}, errors.New("malformed JSON: a key is not a valid string")
			}
		}
		fields = append(fields, field{key: key, member: m.Text, value: int32(len(m.Text) - len(m.Value))})
	}
	if err := unique(fields); err != nil {
		return Body{}, err
	}
	b := Body{source: raw, fields: slices.Clone(fields)}
	if long != nil {
		b.long = *long
	}
	return b, nil
}

// longBody is from what length on the long strings of a body are noted, in bytes.
const longBody = 16 << 10

// usualFields is how many fields objects usually have.
const usualFields = 16

// usualKey returns a key that requests and answers usually have, without taking memory for it; "" for others.
func usualKey(key []byte) string { return usualKeys[string(key)] }

var usualKeys = func() map[string]string {
	keys := make(map[string]string)
	for _, key := range []string{
		"id", "object", "created", "model", "choices", "usage", "messages", "prompt", "stream", "stream_options", "max_tokens",
		"max_completion_tokens", "temperature", "top_p", "prompt_tokens", "completion_tokens", "total_tokens",
		"prompt_tokens_details", "cached_tokens", "service_tier", "system_fingerprint", "prompt_logprobs", "prompt_token_ids",
		"kv_transfer_params", "index", "message", "role", "content", "text", "logprobs", "finish_reason", "stop_reason",
		"token_ids", "tool_calls", "refusal", "annotations", "reasoning", "do_remote_prefill", "do_remote_decode",
		"remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "remote_num_tokens",
		"tp_size",
	} {
		keys[key] = key
	}
	return keys
}()

// unique reports a key that appears twice. Few are compared with each other, which takes no memory.
func unique(fields []field) error {
	if len(fields) <= usualFields {
		for i, f := range fields {
			if slices.ContainsFunc(fields[:i], func(before field) bool { return before.key == f.key }) {
				return errTwice // which one is the client's own text
			}
		}
		return nil
	}
	seen := make(map[string]struct{}, len(fields))
	for _, f := range fields {
		if _, twice := seen[f.key]; twice {
			return errTwice
		}
		seen[f.key] = struct{}{}
	}
	return nil
}

var errTwice = errors.New("a field appears twice in the same object")

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
		before := []byte("{")
		for i := range b.fields {
			if !yield(before) {
				return
			}
			for part := range b.fields[i].parts {
				if !yield(part) {
					return
				}
			}
			before = []byte(",")
		}
		if len(b.fields) == 0 && !yield([]byte("{")) {
			return
		}
		yield([]byte("}"))
	}
}

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
	return Body{edited: true, fields: rest}
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

// Get returns the raw JSON of a field's value, nil if the field is absent.
func (b Body) Get(key string) Value {
	for i := range b.fields {
		if b.fields[i].key == key {
			return b.fields[i].raw()
		}
	}
	return nil
}

func (b Body) has(key string) bool {
	return slices.ContainsFunc(b.fields, func(f field) bool { return f.key == key })
}

// at is Get of a place: keys with dots between them.
func (b Body) at(place string) Value {
	key, rest, deeper := strings.Cut(place, ".")
	value := b.Get(key)
	for deeper {
		key, rest, deeper = strings.Cut(rest, ".")
		value = value.Member(key)
	}
	return value
}

// Edit replaces a field's value, or deletes the field when Value is nil.
type Edit struct {
	Key   string
	Value []byte   // raw JSON
	more  [][]byte // parts of the value that follow
	keep  bool     // long parts are not copied
}

// Set gives a field a value, which is raw JSON; nil deletes the field.
func Set(key string, value []byte) Edit { return Edit{Key: key, Value: value} }

// SetParts is Set of a value that the parts make one behind the other. Long ones are kept, not copied: nobody
// may change them.
func SetParts(key string, parts ...[]byte) Edit {
	return Edit{Key: key, Value: parts[0], more: parts[1:], keep: true}
}

// SetBody is Set of an object that may be edited, with SetParts of what it consists of.
func SetBody(key string, object Body) Edit {
	if !object.edited {
		return Set(key, object.source)
	}
	return SetParts(key, slices.AppendSeq(make([][]byte, 0, 2*len(object.fields)+2), object.Parts())...)
}

// Remove deletes a field.
func Remove(key string) Edit { return Edit{Key: key} }

// With returns a new body with the edits made. Edited fields keep their place,
// new ones come last in the order of the edits, all other bytes of members are
// untouched.
func (b Body) With(edits ...Edit) Body {
	fields, size, changes := len(b.fields), 0, false
	for i := range edits {
		was := b.has(edits[i].Key)
		changes = changes || was || edits[i].Value != nil
		if !was && edits[i].Value != nil {
			fields++
		}
		size += edits[i].size()
	}
	if !changes {
		return b
	}
	buffer := make([]byte, 0, size) // of all new members, where their keys have no escapes
	out := Body{source: b.source, sum: b.sum, long: b.long, edited: true, fields: make([]field, 0, fields)}
	for i := range b.fields {
		f := &b.fields[i]
		edit, found := lastEdit(edits, f.key)
		switch {
		case !found:
			out.fields = append(out.fields, *f)
		case edit.Value != nil:
			out.fields = append(out.fields, newField(&buffer, f.key, f.member[:f.value], edit))
		}
	}
	for i, e := range edits {
		if e.Value == nil || b.has(e.Key) {
			continue
		}
		if _, later := lastEdit(edits[i+1:], e.Key); later {
			continue
		}
		var head [64]byte
		out.fields = append(out.fields, newField(&buffer, e.Key, append(appendKey(head[:0], e.Key), ':'), e))
	}
	return out
}

// appendWith appends what With and Bytes come to, without making a body. Of edits of one field the first counts.
func (b Body) appendWith(to []byte, edits ...Edit) []byte {
	var made uint64 // a bit for each edit
	to = append(to, '{')
	empty := len(to)
	member := func(head []byte) {
		if len(to) > empty {
			to = append(to, ',')
		}
		to = append(to, head...)
	}
	for i := range b.fields {
		f := &b.fields[i]
		at := slices.IndexFunc(edits, func(e Edit) bool { return e.Key == f.key })
		switch {
		case at < 0:
			member(nil)
			to = f.appendTo(to)
			continue
		case edits[at].Value != nil:
			member(f.member[:f.value])
			to = edits[at].appendTo(to)
		}
		made |= 1 << at
	}
	for i := range edits {
		if made&(1<<i) == 0 && edits[i].Value != nil {
			member(nil)
			to = edits[i].appendTo(append(appendKey(to, edits[i].Key), ':'))
		}
	}
	return append(to, '}')
}

// appendTo appends the value.
func (e *Edit) appendTo(to []byte) []byte {
	for part := range e.parts {
		to = append(to, part...)
	}
	return to
}

// Rewrite returns the body with the value that change returns for each field; nil removes
// the field. Its cost is one call a field, however many change.
func (b Body) Rewrite(change func(key string, value Value) Value) Body {
	var fields []field // nil while nothing has changed
	for i := range b.fields {
		f := &b.fields[i]
		was := f.raw()
		value := change(f.key, was)
		same := len(value) == len(was) && len(was) > 0 && &value[0] == &was[0]
		if !same && fields == nil {
			fields = append(make([]field, 0, len(b.fields)), b.fields[:i]...)
		}
		switch {
		case fields == nil:
		case same:
			fields = append(fields, *f)
		case value != nil:
			fields = append(fields, newField(new([]byte), f.key, f.member[:f.value], Set(f.key, value)))
		}
	}
	if fields == nil {
		return b
	}
	return Body{source: b.source, sum: b.sum, long: b.long, edited: true, fields: fields}
}

// Edited reports whether the body is no longer as it was parsed.
func (b Body) Edited() bool { return b.edited }

// appendKey appends a key as a JSON string.
func appendKey(to []byte, key string) []byte {
	for i := range len(key) {
		if c := key[i]; c != '_' && (c < 'a' || c > 'z') {
			quoted, _ := json.Marshal(key) // a string always marshals
			return append(to, quoted...)
		}
	}
	return append(append(append(to, '"'), key...), '"')
}

// longPart is from what length on a part of a value is kept and not copied, in bytes. A short one costs more as a
// piece of its own, of which a request is sent.
const longPart = 4 << 10

// newField makes a member of its head, which is key and colon, and its new value, in a buffer.
func newField(buffer *[]byte, key string, head []byte, edit Edit) field {
	kept := 0
	for part := range edit.parts {
		if edit.keeps(part) {
			kept++
		}
	}
	f, start := field{key: key, value: int32(len(head)), made: true}, len(*buffer)
	copied := append(*buffer, head...)
	var all [][]byte
	if kept > 0 {
		all = make([][]byte, 0, 2*kept+1)
	}
	for part := range edit.parts {
		if edit.keeps(part) {
			all = append(all, copied[start:len(copied):len(copied)], part)
			start = len(copied)
		} else {
			copied = append(copied, part...)
		}
	}
	*buffer = copied
	rest := copied[start:len(copied):len(copied)]
	if kept == 0 {
		f.member = rest
		return f
	}
	tail := append(all, rest)[1:]
	f.member, f.tail = all[0], &tail
	return f
}

// size is what newField takes of a buffer for a member with this value, in bytes.
func (e *Edit) size() int {
	n := len(e.Key) + len(`"":`)
	for part := range e.parts {
		if !e.keeps(part) {
			n += len(part)
		}
	}
	return n
}

// parts are those of the new value.
func (e *Edit) parts(yield func([]byte) bool) {
	if !yield(e.Value) {
		return
	}
	for _, part := range e.more {
		if !yield(part) {
			return
		}
	}
}

func (e *Edit) keeps(part []byte) bool { return e.keep && len(part) >= longPart }

func lastEdit(edits []Edit, key string) (Edit, bool) {
	for i := len(edits) - 1; i >= 0; i-- {
		if edits[i].Key == key {
			return edits[i], true
		}
	}
	return Edit{}, false
}
