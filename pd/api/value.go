package api

import (
	"bytes"
	"encoding/json"
	"iter"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tandem-gateway/tandem/kvstate/jsonscan"
)

// Value is the raw JSON of one value; nil is an absent one.
type Value []byte

// Null reports whether the value is absent or null.
func (v Value) Null() bool { return len(v) == 0 || v[0] == 'n' }

// SaysSomething reports whether the value is neither absent or null nor an empty string.
func (v Value) SaysSomething() bool { return !v.Null() && string(v) != `""` }

// String returns the text of a JSON string.
func (v Value) String() (string, bool) {
	if len(v) == 0 || v[0] != '"' {
		return "", false
	}
	if inner := v[1:max(1, len(v)-1)]; isPlain(inner) && v[len(v)-1] == '"' && len(v) > 1 {
		return string(inner), true
	}
	var s string
	err := json.Unmarshal(v, &s)
	return s, err == nil
}

// isPlain reports text that stands for itself in a JSON string: of ASCII, without an escape.
func isPlain(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c >= utf8.RuneSelf || c == '\\' || c == '"' {
			return false
		}
	}
	return true
}

// Int returns a JSON number that is a whole number.
func (v Value) Int() (int64, bool) {
	if i, usual := v.usualInt(); usual {
		return i, true
	}
	if len(v) == 0 || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return 0, false
	}
	var n json.Number
	if json.Unmarshal(v, &n) != nil {
		return 0, false
	}
	i, err := n.Int64()
	return i, err == nil
}

// usualInt reads a number of few digits.
func (v Value) usualInt() (i int64, usual bool) {
	const digits = 18 // of which any are an int64
	if len(v) == 0 || len(v) > digits || v[0] == '0' && len(v) > 1 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		i = i*10 + int64(c-'0')
	}
	return i, true
}

// exact is up to where a float64 has every whole number.
const exact = 1 << 53

// InDigits returns a number without a fraction in digits alone, such as 5 for 5.0, and any other value as it is.
func (v Value) InDigits() Value {
	if _, usual := v.usualInt(); usual || len(v) == 0 || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return v
	}
	if f, err := strconv.ParseFloat(string(v), 64); err == nil && f == math.Trunc(f) && math.Abs(f) <= exact {
		return strconv.AppendInt(nil, int64(f), 10)
	}
	return v
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
func (v Value) Object() (Body, bool) { return v.objectOf(nil) }

// objectOf is Object of a value in a body of which the long values are known: those of the object are too.
func (v Value) objectOf(long Long) (Body, bool) {
	if !v.IsObject() {
		return Body{}, false
	}
	b, err := parseObject(v, false, long)
	b.long = append(b.long, long...)
	return b, err == nil
}

// IsObject reports whether the value is an object.
func (v Value) IsObject() bool { return len(v) > 0 && v[0] == '{' }

// Members are the keys and raw values of an object, none of anything else: of a value in a body that was
// parsed, which is not checked again. A key that appears twice comes twice.
func (v Value) Members() iter.Seq2[string, Value] { return v.MembersOf(nil) }

// MembersOf is Members of a value in a body of which the long values are known (Body.Long).
func (v Value) MembersOf(long Long) iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for m, err := range long.Members(v) {
			if err != nil {
				return
			}
			key, _ := keyOf(m.Text[:len(m.Key)+len(`""`)])
			if !yield(key, m.Value) {
				return
			}
		}
	}
}

// keyOf is the text of a key, which takes no memory where it is a usual one; false where it is no string.
func keyOf(quoted Value) (key string, ok bool) {
	if len(quoted) > len(`""`) {
		if key = usualKey(quoted[1 : len(quoted)-1]); key != "" {
			return key, true
		}
	}
	return quoted.String()
}

// Cursor walks a value in a body that was parsed, and all that is in it, once: see jsonscan.Cursor.
type Cursor struct{ jsonscan.Cursor }

// CursorOf is a cursor before a value in a body of which the long values are known (Body.Long).
func (v Value) CursorOf(long Long) Cursor { return Cursor{long.Cursor(v)} }

// Key returns the key of a member, and goes to its value.
func (c *Cursor) Key() string {
	key, _ := keyOf(c.QuotedKey())
	return key
}

// Value returns the value that comes next, and goes behind it.
func (c *Cursor) Value() Value { return c.Cursor.Value() }

// Member is the value of an object's first member with a key that has no escapes, nil where there is none: of
// a value that was checked.
func (v Value) Member(key string) Value { return v.memberOf(nil, key) }

// memberOf is Member of a value in a body of which the long values are known.
func (v Value) memberOf(long Long, key string) Value {
	if !v.IsObject() {
		return nil
	}
	for m, err := range long.Members(v) {
		if err == nil && string(m.Key) == key {
			return m.Value
		}
	}
	return nil
}

// IsTextPart reports whether the value is a part of a message that is text and nothing else. vLLM takes a part for what
// it has, whatever type it names (renderers/chat_utils.py, has_non_text_content).
func (v Value) IsTextPart() bool {
	text := false
	for key, value := range v.Members() {
		switch key {
		case "type":
			kind, _ := value.String()
			text = kind == "text"
		case "text", "cache_control":
		default:
			if !value.Null() {
				return false
			}
		}
	}
	return text
}

// IsArray reports whether the value is an array.
func (v Value) IsArray() bool { return len(v) > 0 && v[0] == '[' }

// IsEmptyArray reports whether the value is an array without elements.
func (v Value) IsEmptyArray() bool {
	after := jsonscan.SkipSpace(v, 1)
	return v.IsArray() && after < len(v) && v[after] == ']'
}

// Array reports whether the value is an array, and its raw elements. Elements
// share the value's bytes. A client's may be many: a slice of them takes ten times the
// memory of the shortest.
func (v Value) Array() (elements []Value, ok bool) {
	if !v.IsArray() {
		return nil, false
	}
	whole := v.each(nil, func(e Value) bool {
		elements = append(elements, e)
		return true
	})
	if !whole {
		return nil, false
	}
	return elements, true
}

// Elements are the raw elements of an array, none of anything else. They share the value's
// bytes.
func (v Value) Elements() iter.Seq[Value] { return v.ElementsOf(nil) }

// ElementsOf is Elements of a value in a body of which the long values are known (Body.Long).
func (v Value) ElementsOf(long Long) iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.IsArray() {
			v.each(long, yield)
		}
	}
}

// each yields the elements of an array until it is told to stop, and reports whether the
// array came to its end.
func (v Value) each(long Long, yield func(Value) bool) (whole bool) {
	for element, err := range long.Elements(v) {
		if err != nil || !yield(element) {
			return false
		}
	}
	return true
}

// List returns the JSON array of values.
func List(values []Value) []byte {
	parts := make([][]byte, len(values))
	for i, v := range values {
		parts[i] = v
	}
	return append(append([]byte{'['}, bytes.Join(parts, []byte{','})...), ']')
}
