package pd

import (
	"bytes"
	"encoding/json"
)

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

// List returns the JSON array of values.
func List(values []Value) []byte {
	parts := make([][]byte, len(values))
	for i, v := range values {
		parts[i] = v
	}
	return append(append([]byte{'['}, bytes.Join(parts, []byte{','})...), ']')
}
