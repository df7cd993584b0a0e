package jinja

import (
	"bytes"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// What a JSON text may be, since it comes from a client.
const (
	maxDepth  = 64      // of values in each other
	maxValues = 1 << 20 // in one text
	maxDigits = 4300    // of an integer; Python reads no more
)

var errJSON = errors.New("not JSON that is read here")

// ParseJSON reads a JSON text as Python's json.loads does, keys in their order; of a key that is
// there twice the last value counts, in the place of the first. What Python reads beyond
// JSON (NaN, Infinity), half surrogates, what is no UTF-8, and texts that are too deep or have
// too many values, are errors.
func ParseJSON(text []byte) (Value, error) {
	if !utf8.Valid(text) {
		return nil, errJSON
	}
	p := jsonParser{text: text}
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.at < len(text) {
		return nil, errJSON
	}
	return v, nil
}

// jsonParser walks a text once. With jsonscan's Members and Elements, which walk each value once
// for every one that it is in, it would be some 60 lines shorter and 1.7 times as slow: 0.79 ms
// against 0.47 for a coding agent's request of 76 kB.
type jsonParser struct {
	text   []byte
	at     int
	values int
}

func (p *jsonParser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next is the next byte that is no space, 0 at the end.
func (p *jsonParser) next() byte {
	p.space()
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *jsonParser) value(depth int) (Value, error) {
	if p.values++; depth > maxDepth || p.values > maxValues {
		return nil, errJSON
	}
	switch c := p.next(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		return p.string()
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	switch {
	case p.word("null"):
		return nil, nil
	case p.word("true"):
		return true, nil
	case p.word("false"):
		return false, nil
	}
	return nil, errJSON
}

// word skips a word where it is the next.
func (p *jsonParser) word(w string) bool {
	is := bytes.HasPrefix(p.text[p.at:], []byte(w))
	if is {
		p.at += len(w)
	}
	return is
}

func (p *jsonParser) object(depth int) (Value, error) {
	d := new(Dict)
	p.at++
	if p.next() == '}' {
		p.at++
		return d, nil
	}
	for {
		if p.next() != '"' {
			return nil, errJSON
		}
		key, err := p.string()
		if err != nil {
			return nil, err
		}
		if p.next() != ':' {
			return nil, errJSON
		}
		p.at++
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		d.Set(key, v)
		switch p.next() {
		case ',':
			p.at++
		case '}':
			p.at++
			return d, nil
		default:
			return nil, errJSON
		}
	}
}

func (p *jsonParser) array(depth int) (Value, error) {
	l := NewList()
	p.at++
	if p.next() == ']' {
		p.at++
		return l, nil
	}
	for {
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
		switch p.next() {
		case ',':
			p.at++
		case ']':
			p.at++
			return l, nil
		default:
			return nil, errJSON
		}
	}
}

// string reads a string, from its quote on.
func (p *jsonParser) string() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			s := string(p.text[start:p.at])
			p.at++
			return s, nil
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			return "", errJSON
		}
		p.at++
	}
	return "", errJSON
}

// escaped reads a string with escapes, of which the bytes from start on were read.
func (p *jsonParser) escaped(start int) (string, error) {
	var b strings.Builder
	b.Grow(p.stringEnd() - start) // escapes are no shorter than what they stand for
	b.Write(p.text[start:p.at])
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return b.String(), nil
		case c < 0x20:
			return "", errJSON
		case c != '\\':
			from := p.at
			for p.at < len(p.text) && p.text[p.at] >= 0x20 && p.text[p.at] != '"' && p.text[p.at] != '\\' {
				p.at++
			}
			b.Write(p.text[from:p.at])
		default:
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		}
	}
	return "", errJSON
}

// stringEnd is where the string that was read up to here ends: at the first quote that an even
// number of backslashes precede.
func (p *jsonParser) stringEnd() int {
	for at := p.at; ; at++ {
		i := bytes.IndexByte(p.text[at:], '"')
		if i < 0 {
			return len(p.text)
		}
		at += i
		slashes := at
		for slashes > p.at && p.text[slashes-1] == '\\' {
			slashes--
		}
		if (at-slashes)%2 == 0 {
			return at
		}
	}
}

// simpleEscapes are those of one character.
var simpleEscapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (p *jsonParser) escape() (rune, error) {
	if p.at+1 >= len(p.text) {
		return 0, errJSON
	}
	if r, ok := simpleEscapes[p.text[p.at+1]]; ok {
		p.at += 2
		return r, nil
	}
	r, ok := p.hex()
	if !ok {
		return 0, errJSON
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	low, ok := p.hex()
	if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
		return 0, errJSON // half a character, which no engine can encode
	}
	return r, nil
}

// hex reads \uXXXX.
func (p *jsonParser) hex() (rune, bool) {
	if p.at+6 > len(p.text) || p.text[p.at] != '\\' || p.text[p.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.text[p.at+2:p.at+6]), 16, 16)
	p.at += 6
	return rune(n), err == nil
}

func (p *jsonParser) number() (Value, error) {
	start := p.at
	if p.text[p.at] == '-' {
		p.at++
	}
	whole := p.digits()
	if whole == 0 || whole > 1 && p.text[p.at-whole] == '0' {
		return nil, errJSON
	}
	float := false
	if p.at < len(p.text) && p.text[p.at] == '.' {
		p.at++
		if float = true; p.digits() == 0 {
			return nil, errJSON
		}
	}
	if p.at < len(p.text) && p.text[p.at]|0x20 == 'e' {
		p.at++
		if p.at < len(p.text) && (p.text[p.at] == '+' || p.text[p.at] == '-') {
			p.at++
		}
		if float = true; p.digits() == 0 {
			return nil, errJSON
		}
	}
	text := string(p.text[start:p.at])
	if float {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && !math.IsInf(f, 0) {
			return nil, errJSON
		}
		return f, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || whole > maxDigits {
		return nil, errJSON
	}
	return n, nil
}

// digits skips digits and says how many.
func (p *jsonParser) digits() int {
	start := p.at
	for p.at < len(p.text) && p.text[p.at] >= '0' && p.text[p.at] <= '9' {
		p.at++
	}
	return p.at - start
}
