package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// Value is a value of a template: nil (Python's None), bool, int64, *big.Int (beyond 64 bits),
// float64, string, *List, *Dict, or one of this package's own (undefined, ranges, functions).
type Value any

// List is a list or a tuple.
type List struct {
	Items []Value
	tuple bool
}

// NewList returns a list of items.
func NewList(items ...Value) *List { return &List{Items: items} }

// Dict is a mapping with keys in the order in which they were first set.
type Dict struct {
	pairs []pair
	index map[string]int // of keys, once there are many
}

type pair struct {
	key   string
	value Value
}

// fewKeys are found by looking at each.
const fewKeys = 8

// Get returns the value of a key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.pairs[i].value, true
	}
	return nil, false
}

func (d *Dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range d.pairs {
		if d.pairs[i].key == key {
			return i
		}
	}
	return -1
}

// Set gives a key a value; a key that is there keeps its place.
func (d *Dict) Set(key string, value Value) {
	if i := d.find(key); i >= 0 {
		d.pairs[i].value = value
		return
	}
	d.pairs = append(d.pairs, pair{key, value})
	switch {
	case d.index != nil:
		d.index[key] = len(d.pairs) - 1
	case len(d.pairs) > fewKeys:
		d.index = make(map[string]int, 2*len(d.pairs))
		for i := range d.pairs {
			d.index[d.pairs[i].key] = i
		}
	}
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.pairs) }

// All yields keys and values in order.
func (d *Dict) All(yield func(string, Value) bool) {
	for _, p := range d.pairs {
		if !yield(p.key, p.value) {
			return
		}
	}
}

// undefined is a name without a value: empty text, an empty sequence, false, and an error
// for most else.
type undefined struct{ name string }

// iterator is what Python's generators are: gone through once, always true, without a length.
type iterator struct {
	items  []Value
	at     int
	broken bool // a loop over it ended early, and what it left is not known
}

func (it *iterator) rest() []Value {
	rest := it.items[it.at:]
	it.at = len(it.items)
	return rest
}

// view is a range, or a dict's items, keys or values: gone through as often as one likes.
type view struct {
	items   []Value
	indexed bool // a range can be indexed
}

// namespace is an object whose attributes a template may set.
type namespace struct{ attributes Dict }

// safeText is text marked as safe: concatenating it escapes the other text, so that it can only
// be written.
type safeText string

// function is a callable of a template.
type function struct {
	name string
	call func(r *render, args arguments) (Value, error)
}

// arguments are those of a call.
type arguments struct {
	positional []Value
	named      []pair
}

// parameter is the i-th argument or the one with the name.
func (a arguments) parameter(i int, name string) (Value, bool) {
	if i < len(a.positional) {
		return a.positional[i], true
	}
	for _, p := range a.named {
		if p.key == name {
			return p.value, true
		}
	}
	return nil, false
}

// only checks that there are no more arguments than parameters, and none by another name.
func (a arguments) only(names ...string) error {
	if len(a.positional) > len(names) {
		return fmt.Errorf("%d arguments, and at most %d are known", len(a.positional), len(names))
	}
	for _, p := range a.named {
		known := false
		for _, n := range names[len(a.positional):] {
			known = known || n == p.key
		}
		if !known {
			return fmt.Errorf("an argument %s is not known", p.key)
		}
	}
	return nil
}

// typeName is how errors name a value's type.
func typeName(v Value) string {
	switch v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string, safeText:
		return "str"
	case *List:
		return "list"
	case *Dict:
		return "dict"
	case undefined:
		return "undefined"
	}
	return fmt.Sprintf("%T", v)
}

// truth is Python's bool().
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case safeText:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	case *view:
		return len(v.items) > 0
	}
	return true
}

// number is an int or float, or what Python counts as one.
func number(v Value) (f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true, true
		}
		return 0, true, true
	case int64:
		return float64(v), true, true
	case float64:
		return v, false, true
	}
	return 0, false, false
}

// integer is a value that Python takes as an index.
func integer(v Value) (int64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	}
	return 0, false
}

var errCompare = errors.New("values of these types are not compared here")

// equal is Python's ==.
func equal(a, b Value) (bool, error) {
	x, xInt, xOK := number(a)
	y, yInt, yOK := number(b)
	if xOK && yOK {
		if xInt && yInt {
			m, _ := integer(a)
			n, _ := integer(b)
			return m == n, nil
		}
		if math.Abs(x) > 1<<53 || math.Abs(y) > 1<<53 {
			return false, errCompare // an int may not be the float's
		}
		return x == y, nil
	}
	switch a := a.(type) {
	case nil:
		return b == nil, nil
	case undefined:
		_, is := b.(undefined)
		return is, nil
	case string:
		s, is := b.(string)
		if _, safe := b.(safeText); safe {
			return false, errCompare
		}
		return is && a == s, nil
	case *List:
		return equalLists(a, b)
	case *Dict:
		return equalDicts(a, b)
	case bool, int64, float64:
		if _, big := b.(*big.Int); big {
			return false, errCompare
		}
		return false, nil
	}
	return false, errCompare
}

func equalLists(a *List, b Value) (bool, error) {
	l, is := b.(*List)
	if !is || a.tuple != l.tuple || len(a.Items) != len(l.Items) {
		return false, nil
	}
	for i := range a.Items {
		if same, err := equal(a.Items[i], l.Items[i]); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

func equalDicts(a *Dict, b Value) (bool, error) {
	d, is := b.(*Dict)
	if !is || a.Len() != d.Len() {
		return false, nil
	}
	for _, p := range a.pairs {
		other, ok := d.Get(p.key)
		if !ok {
			return false, nil
		}
		if same, err := equal(p.value, other); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

// compare is -1, 0 or 1, for what Python orders.
func compare(a, b Value) (int, error) {
	if s, is := a.(string); is {
		if t, is := b.(string); is {
			return strings.Compare(s, t), nil // bytes of UTF-8 are in the order of code points
		}
	}
	if m, is := integer(a); is {
		if n, is := integer(b); is {
			switch {
			case m < n:
				return -1, nil
			case m > n:
				return 1, nil
			}
			return 0, nil
		}
	}
	x, _, xOK := number(a)
	y, _, yOK := number(b)
	if !xOK || !yOK || math.Abs(x) > 1<<53 || math.Abs(y) > 1<<53 {
		return 0, errCompare
	}
	switch {
	case x < y:
		return -1, nil
	case x > y:
		return 1, nil
	}
	return 0, nil
}

// str is Python's str().
func str(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case safeText:
		return string(v), nil
	case undefined:
		return "", nil
	}
	var b strings.Builder
	err := repr(&b, v)
	return b.String(), err
}

// repr is Python's repr().
func repr(b *strings.Builder, v Value) error {
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		b.WriteString("Undefined")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		b.WriteString(floatText(v))
	case string:
		return reprString(b, v)
	case *List:
		return reprList(b, v)
	case *Dict:
		return reprDict(b, v)
	default:
		return fmt.Errorf("%s has no text that is the same each time", typeName(v))
	}
	return nil
}

func reprList(b *strings.Builder, l *List) error {
	open, end := byte('['), byte(']')
	if l.tuple {
		open, end = '(', ')'
	}
	b.WriteByte(open)
	for i, item := range l.Items {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := repr(b, item); err != nil {
			return err
		}
	}
	if l.tuple && len(l.Items) == 1 {
		b.WriteByte(',')
	}
	b.WriteByte(end)
	return nil
}

func reprDict(b *strings.Builder, d *Dict) error {
	b.WriteByte('{')
	for i, p := range d.pairs {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := reprString(b, p.key); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := repr(b, p.value); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

func reprString(b *strings.Builder, s string) error {
	quote := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(b, `\x%02x`, r)
		case r > 0x7f && !unicode.IsPrint(r):
			return errors.New("how Python writes this character depends on its version")
		default:
			b.WriteRune(r)
		}
	}
	b.WriteRune(quote)
	return nil
}

// floatText is Python's repr of a float: the shortest digits, with an exponent from 1e16 on and
// below 1e-4.
func floatText(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64) // both write at least two digits of exponent
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// isSpace is Python's str.isspace of a character.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }
