package messages

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/tandem-gateway/tandem/pd/api"
)

// pythonJSON writes an object as Python's json.dumps(json.loads(object)) does, which is
// what engines put into a call's arguments: a space behind commas and colons, everything
// beyond ASCII escaped, floats in their shortest form. One pass, whatever the nesting.
func pythonJSON(object api.Value, seen *parts) (string, error) {
	in := json.NewDecoder(bytes.NewReader(object))
	in.UseNumber()
	w := &pythonWriter{}
	for {
		token, err := in.Token()
		if err != nil {
			return "", inexact("the input of a tool_use is not JSON")
		}
		if err := seen.add(); err != nil {
			return "", err
		}
		if err := w.token(token); err != nil {
			return "", err
		}
		if len(w.open) == 0 {
			return w.out.String(), nil
		}
	}
}

// pythonWriter writes one value token by token.
type pythonWriter struct {
	out  strings.Builder
	open []container
}

// container is an object or array that is not complete.
type container struct {
	keys    map[string]bool // of an object; nil for an array
	members int
	key     bool // a key was written and its value not
}

func (w *pythonWriter) token(token json.Token) error {
	if d, ok := token.(json.Delim); ok && (d == '}' || d == ']') {
		w.open = w.open[:len(w.open)-1]
		w.out.WriteRune(rune(d))
		return nil
	}
	if err := w.separate(token); err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		w.out.WriteRune(rune(t))
		c := container{}
		if t == '{' {
			c.keys = make(map[string]bool)
		}
		w.open = append(w.open, c)
	case string:
		return w.text(t)
	case json.Number:
		return w.number(string(t))
	case bool:
		w.out.WriteString(strconv.FormatBool(t))
	default:
		w.out.WriteString("null")
	}
	return nil
}

// separate writes what stands before a key, a value or an element.
func (w *pythonWriter) separate(token json.Token) error {
	if len(w.open) == 0 {
		return nil
	}
	c := &w.open[len(w.open)-1]
	if c.key {
		c.key = false
		w.out.WriteString(": ")
		return nil
	}
	if c.members++; c.members > 1 {
		w.out.WriteString(", ")
	}
	if c.keys == nil {
		return nil
	}
	key, _ := token.(string)
	if c.keys[key] {
		return inexact("a field appears twice in the input of a tool_use")
	}
	c.keys[key], c.key = true, true
	return nil
}

const hex = "0123456789abcdef"

// text writes a string. Half of a surrogate pair has no place in Go's strings.
func (w *pythonWriter) text(s string) error {
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}
	w.out.WriteByte('"')
	for _, r := range s {
		switch escape, ok := short[r]; {
		case ok:
			w.out.WriteString(escape)
		case r == '\uFFFD':
			return inexact("a character in the input of a tool_use that is none")
		case r >= ' ' && r <= '~':
			w.out.WriteByte(byte(r))
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				w.out.WriteString(`\u`)
				for shift := 12; shift >= 0; shift -= 4 {
					w.out.WriteByte(hex[unit>>shift&15])
				}
			}
		}
	}
	w.out.WriteByte('"')
	return nil
}

// maxDigits is where Python begins to refuse whole numbers.
const maxDigits = 4300

func (w *pythonWriter) number(text string) error {
	if !strings.ContainsAny(text, ".eE") {
		if text == "-0" || len(text) > maxDigits {
			return inexact("a number in the input of a tool_use that Python writes otherwise")
		}
		w.out.WriteString(text)
		return nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return inexact("a number in the input of a tool_use that is too large")
	}
	w.out.WriteString(pythonFloat(f))
	return nil
}

// pythonFloat is Python's repr of a float.
func pythonFloat(f float64) string {
	if size := math.Abs(f); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// quote writes a text as JSON.
func quote(text string) []byte { return encode(text) }

// encode is JSON without the escapes that are for HTML.
func encode(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // texts, numbers and raw JSON that was checked always encode
	return bytes.TrimRight(buf.Bytes(), "\n")
}
