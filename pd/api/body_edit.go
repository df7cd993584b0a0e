package api

import (
	"encoding/json"
	"slices"
)

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
	var room [24]int
	places := room[:0] // of their fields, -1 of one that there is not
	fields, size, changes := len(b.fields), 0, false
	for i := range edits {
		at, e := index(b.fields, edits[i].Key), &edits[i]
		places = append(places, at)
		if at >= 0 || e.Value != nil {
			changes = true
		}
		if e.Value != nil {
			size += e.size()
			if at < 0 {
				fields++
			}
		}
	}
	if !changes {
		return b
	}
	buffer := make([]byte, 0, size) // of all new members, where their keys have no escapes
	out := Body{source: b.source, sum: b.sum, long: b.long, edited: true, fields: make([]field, 0, fields), keys: b.keys}
	for i := range b.fields {
		f, last := &b.fields[i], lastIndex(places, i)
		switch {
		case last < 0:
			out.fields = append(out.fields, *f)
		case edits[last].Value != nil:
			out.fields = append(out.fields, newField(&buffer, f.key, f.member[:f.value], &edits[last]))
		}
	}
	for i := range edits {
		e := &edits[i]
		if e.Value == nil || places[i] >= 0 || slices.ContainsFunc(edits[i+1:], func(later Edit) bool { return later.Key == e.Key }) {
			continue
		}
		var head [64]byte
		out.keys |= lengthOf(e.Key)
		out.fields = append(out.fields, newField(&buffer, e.Key, append(appendKey(head[:0], e.Key), ':'), e))
	}
	return out
}

// lastIndex is the last place of a number, -1 where it is not.
func lastIndex(all []int, n int) int {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i] == n {
			return i
		}
	}
	return -1
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
			fields = append(fields, newField(new([]byte), f.key, f.member[:f.value], &Edit{Key: f.key, Value: value}))
		}
	}
	if fields == nil {
		return b
	}
	return Body{source: b.source, sum: b.sum, long: b.long, edited: true, fields: fields, keys: b.keys}
}

// Edited reports whether the body is no longer as it was parsed.
func (b Body) Edited() bool { return b.edited }

// longPart is from what length on a part of a value is kept and not copied, in bytes. A short one costs more as a
// piece of its own, of which a request is sent.
const longPart = 4 << 10

// newField makes a member of its head, which is key and colon, and its new value, in a buffer.
func newField(buffer *[]byte, key string, head []byte, edit *Edit) field {
	f, start := field{key: key, value: int32(len(head)), made: true}, len(*buffer)
	copied := append(*buffer, head...)
	if !edit.keepsAny() {
		copied = edit.appendTo(copied)
		*buffer, f.member = copied, copied[start:len(copied):len(copied)]
		return f
	}
	all := make([][]byte, 0, 2*len(edit.more)+3)
	for part := range edit.parts {
		if edit.keeps(part) {
			all = append(all, copied[start:len(copied):len(copied)], part)
			start = len(copied)
		} else {
			copied = append(copied, part...)
		}
	}
	*buffer = copied
	tail := append(all, copied[start:len(copied):len(copied)])[1:]
	f.member, f.tail = all[0], &tail
	return f
}

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

// appendTo appends the value.
func (e *Edit) appendTo(to []byte) []byte {
	to = append(to, e.Value...)
	for _, part := range e.more {
		to = append(to, part...)
	}
	return to
}

// size is what newField takes of a buffer for a member with this value, in bytes.
func (e *Edit) size() int {
	n := len(e.Key) + len(`"":`)
	if !e.keeps(e.Value) {
		n += len(e.Value)
	}
	for _, part := range e.more {
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

// keepsAny reports whether a part of the value is kept.
func (e *Edit) keepsAny() bool {
	return e.keep && (e.keeps(e.Value) || slices.ContainsFunc(e.more, e.keeps))
}
