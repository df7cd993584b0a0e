package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// dump writes JSON as Python's json.dumps does.
type dump struct {
	strings.Builder
	ascii     bool
	sorted    bool
	indent    string // of one level
	multiline bool   // there is an indent, which may be empty
	comma     string
	colon     string
}

// tojson is the filter of transformers: json.dumps with these arguments, in this order; HTML
// characters are not escaped.
func tojson(r *render, v Value, args arguments) (Value, error) {
	if err := args.only("ensure_ascii", "indent", "separators", "sort_keys"); err != nil {
		return nil, err
	}
	d := dump{comma: ", ", colon: ": "}
	if ascii, ok := args.parameter(0, "ensure_ascii"); ok {
		d.ascii = truth(ascii)
	}
	if sorted, ok := args.parameter(3, "sort_keys"); ok {
		d.sorted = truth(sorted)
	}
	if err := d.setIndent(args); err != nil {
		return nil, err
	}
	if err := d.setSeparators(args); err != nil {
		return nil, err
	}
	if err := d.value(v, 0); err != nil {
		return nil, err
	}
	return d.String(), r.charge(d.Len())
}

// maxIndent bounds an indent, in characters.
const maxIndent = 16

func (d *dump) setIndent(args arguments) error {
	indent, ok := args.parameter(1, "indent")
	if !ok || indent == nil {
		return nil
	}
	d.multiline, d.comma = true, ","
	if s, is := indent.(string); is && len(s) <= maxIndent {
		d.indent = s
		return nil
	}
	n, is := indent.(int64)
	if !is || n > maxIndent {
		return errors.New("tojson has an indent that is not known")
	}
	d.indent = strings.Repeat(" ", int(max(n, 0)))
	return nil
}

func (d *dump) setSeparators(args arguments) error {
	separators, ok := args.parameter(2, "separators")
	if !ok || separators == nil {
		return nil
	}
	l, is := separators.(*List)
	if !is || len(l.Items) != 2 {
		return errors.New("tojson has separators that are not known")
	}
	comma, isComma := l.Items[0].(string)
	colon, isColon := l.Items[1].(string)
	if !isComma || !isColon || len(comma)+len(colon) > maxIndent {
		return errors.New("tojson has separators that are not known")
	}
	d.comma, d.colon = comma, colon
	return nil
}

// maxDump bounds the depth of what is dumped: values of a template may be nested too.
const maxDump = 2 * maxDepth

func (d *dump) value(v Value, depth int) error {
	if depth > maxDump {
		return errors.New("tojson of a value that is too deep")
	}
	switch v := v.(type) {
	case nil:
		d.WriteString("null")
	case bool:
		d.WriteString(strconv.FormatBool(v))
	case int64:
		d.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		d.WriteString(v.String())
	case float64:
		d.float(v)
	case string:
		d.text(v)
	case *List:
		return d.list(v, depth)
	case *Dict:
		return d.dict(v, depth)
	default:
		return fmt.Errorf("%s is not JSON", typeName(v))
	}
	return nil
}

func (d *dump) float(f float64) {
	switch {
	case math.IsInf(f, 1):
		d.WriteString("Infinity")
	case math.IsInf(f, -1):
		d.WriteString("-Infinity")
	case math.IsNaN(f):
		d.WriteString("NaN")
	default:
		d.WriteString(floatText(f))
	}
}

// line begins a new line within a value at a depth, where there are lines.
func (d *dump) line(depth int) {
	if d.multiline {
		d.WriteByte('\n')
		for range depth {
			d.WriteString(d.indent)
		}
	}
}

func (d *dump) list(l *List, depth int) error {
	if len(l.Items) == 0 {
		d.WriteString("[]")
		return nil
	}
	d.WriteByte('[')
	for i, item := range l.Items {
		if i > 0 {
			d.WriteString(d.comma)
		}
		d.line(depth + 1)
		if err := d.value(item, depth+1); err != nil {
			return err
		}
	}
	d.line(depth)
	d.WriteByte(']')
	return nil
}

func (d *dump) dict(v *Dict, depth int) error {
	if v.Len() == 0 {
		d.WriteString("{}")
		return nil
	}
	pairs := v.pairs
	if d.sorted {
		pairs = slices.SortedStableFunc(slices.Values(pairs), func(a, b pair) int { return cmp.Compare(a.key, b.key) })
	}
	d.WriteByte('{')
	for i, p := range pairs {
		if i > 0 {
			d.WriteString(d.comma)
		}
		d.line(depth + 1)
		d.text(p.key)
		d.WriteString(d.colon)
		if err := d.value(p.value, depth+1); err != nil {
			return err
		}
	}
	d.line(depth)
	d.WriteByte('}')
	return nil
}

// jsonEscapes are the characters with an escape of their own.
var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func (d *dump) text(s string) {
	d.WriteByte('"')
	plain := 0
	for i, r := range s {
		if r >= 0x20 && r != '"' && r != '\\' && (r < 0x7f || !d.ascii) {
			continue
		}
		d.WriteString(s[plain:i])
		plain = i + len(string(r))
		d.escape(r)
	}
	d.WriteString(s[plain:])
	d.WriteByte('"')
}

func (d *dump) escape(r rune) {
	if e, ok := jsonEscapes[r]; ok {
		d.WriteString(e)
	} else if r < 0x10000 {
		fmt.Fprintf(d, `\u%04x`, r)
	} else {
		high, low := utf16.EncodeRune(r)
		fmt.Fprintf(d, `\u%04x\u%04x`, high, low)
	}
}
