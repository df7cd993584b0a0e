package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// method is a function of a value.
type method func(r *render, of Value, args arguments) (Value, error)

// Public attributes of Python's types that this package has not: the sandbox refuses some, and of
// the others the result is not known.
var (
	otherOfString = words("casefold center encode expandtabs format format_map isalnum isalpha isascii isdecimal isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans rindex rjust splitlines swapcase title translate zfill")
	otherOfList   = words("append clear copy extend insert pop remove reverse sort")
	otherOfDict   = words("clear copy fromkeys pop popitem setdefault update")
	otherOfNumber = words("as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex imag is_integer numerator real to_bytes")
)

func words(list string) []string { return strings.Fields(list) }

// attribute is a public attribute of a value as Python has it; nil where there is none. Names are
// looked up here before they are keys.
func attribute(of Value, name string) (*found, error) {
	if strings.HasPrefix(name, "__") {
		return nil, fmt.Errorf("the attribute %s", name)
	}
	var m method
	var others []string
	switch of := of.(type) {
	case string:
		m, others = methodOfString(name), otherOfString
	case *List:
		m, others = methodOfList(name), otherOfList
	case *Dict:
		m, others = methodOfDict(name), otherOfDict
	case bool, int64, float64:
		others = otherOfNumber
	case nil:
	case undefined:
		return nil, fmt.Errorf("%s is undefined and has no %s", of.name, name)
	case *namespace:
		if v, ok := of.attributes.Get(name); ok {
			return &found{v}, nil
		}
	case *loopState:
		v, err := of.attribute(name)
		return &found{v}, err
	default:
		return nil, fmt.Errorf("an attribute of %s", typeName(of))
	}
	if slices.Contains(others, name) {
		return nil, fmt.Errorf("%s.%s is not known", typeName(of), name)
	}
	if m == nil {
		return nil, nil
	}
	return &found{&function{name, func(r *render, args arguments) (Value, error) { return m(r, of, args) }}}, nil
}

func methodOfDict(name string) method {
	switch name {
	case "get":
		return func(_ *render, of Value, args arguments) (Value, error) {
			if err := args.only("key", "default"); err != nil || len(args.positional) < 1 || len(args.named) > 0 {
				return nil, errors.Join(err, errors.New("dict.get takes a key and a default"))
			}
			fallback, _ := args.parameter(1, "default")
			switch key := args.positional[0].(type) {
			case string:
				if v, ok := of.(*Dict).Get(key); ok {
					return v, nil
				}
				return fallback, nil
			case nil, bool, int64, float64, undefined:
				return fallback, nil
			}
			return nil, errors.New("dict.get of a key that is not text")
		}
	case "items", "keys", "values":
		return func(r *render, of Value, args arguments) (Value, error) {
			if err := args.only(); err != nil {
				return nil, err
			}
			v := new(view)
			for k, value := range of.(*Dict).All {
				switch name {
				case "items":
					v.items = append(v.items, &List{Items: []Value{k, value}, tuple: true})
				case "keys":
					v.items = append(v.items, k)
				default:
					v.items = append(v.items, value)
				}
			}
			return v, r.charge(64 * len(v.items))
		}
	}
	return nil
}

func methodOfList(name string) method {
	if name != "index" && name != "count" {
		return nil
	}
	return func(r *render, of Value, args arguments) (Value, error) {
		if len(args.positional) != 1 || len(args.named) > 0 {
			return nil, fmt.Errorf("list.%s takes one value", name)
		}
		n := int64(0)
		for i, item := range of.(*List).Items {
			same, err := equal(item, args.positional[0])
			if err != nil {
				return nil, err
			}
			if same && name == "index" {
				return int64(i), nil
			}
			if same {
				n++
			}
		}
		if name == "index" {
			return nil, errors.New("the list has no such item")
		}
		return n, r.charge(64 * len(of.(*List).Items))
	}
}

// methodOfString are the methods of text. Those that change case know ASCII only.
func methodOfString(name string) method {
	of := func(f func(s string, args arguments) (Value, error)) method {
		return func(r *render, of Value, args arguments) (Value, error) {
			if len(args.named) > 0 {
				return nil, fmt.Errorf("str.%s has a named argument", name)
			}
			if err := r.charge(8 * len(of.(string))); err != nil {
				return nil, err
			}
			return f(of.(string), args)
		}
	}
	switch name {
	case "strip", "lstrip", "rstrip":
		return of(func(s string, args arguments) (Value, error) { return strip(name, s, args.positional) })
	case "split", "rsplit":
		return of(func(s string, args arguments) (Value, error) { return split(name == "rsplit", s, args.positional) })
	case "startswith", "endswith":
		return of(func(s string, args arguments) (Value, error) { return affixed(name, s, args.positional) })
	case "upper", "lower", "capitalize":
		return of(func(s string, args arguments) (Value, error) {
			if err := args.only(); err != nil {
				return nil, err
			}
			return changeCase(name, s)
		})
	case "replace":
		return func(r *render, of Value, args arguments) (Value, error) {
			if len(args.named) > 0 {
				return nil, errors.New("str.replace has a named argument")
			}
			return replace(r, of.(string), args)
		}
	case "find", "rfind", "index", "count", "removeprefix", "removesuffix", "partition", "rpartition":
		return of(func(s string, args arguments) (Value, error) {
			if len(args.positional) != 1 {
				return nil, fmt.Errorf("str.%s takes one argument", name)
			}
			part, is := args.positional[0].(string)
			if !is {
				return nil, fmt.Errorf("str.%s of %s", name, typeName(args.positional[0]))
			}
			return search(name, s, part)
		})
	case "join":
		return func(r *render, of Value, args arguments) (Value, error) { return join(r, of.(string), args) }
	case "isdigit":
		return of(func(s string, args arguments) (Value, error) {
			if !isASCII(s) {
				return nil, errASCII
			}
			return s != "" && strings.Trim(s, "0123456789") == "", args.only()
		})
	}
	return nil
}

func strip(name, s string, args []Value) (Value, error) {
	in := isSpace
	if len(args) > 1 {
		return nil, fmt.Errorf("str.%s takes one argument", name)
	}
	if len(args) == 1 && args[0] != nil {
		characters, is := args[0].(string)
		if !is {
			return nil, fmt.Errorf("str.%s of %s", name, typeName(args[0]))
		}
		in = func(r rune) bool { return strings.ContainsRune(characters, r) }
	}
	if name != "rstrip" {
		s = strings.TrimLeftFunc(s, in)
	}
	if name != "lstrip" {
		s = strings.TrimRightFunc(s, in)
	}
	return s, nil
}

// split is str.split, by a separator or by white space.
func split(fromRight bool, s string, args []Value) (Value, error) {
	most := int64(-1)
	if len(args) == 2 {
		var is bool
		if most, is = integer(args[1]); !is {
			return nil, errors.New("str.split by a number that is none")
		}
	}
	if len(args) > 2 {
		return nil, errors.New("str.split takes two arguments")
	}
	var parts []string
	if len(args) == 0 || args[0] == nil {
		if most >= 0 {
			return nil, errors.New("str.split by white space, so often")
		}
		parts = strings.FieldsFunc(s, isSpace)
	} else {
		separator, is := args[0].(string)
		if !is || separator == "" {
			return nil, errors.New("str.split by what is not text")
		}
		parts = splitBy(fromRight, s, separator, most)
	}
	l := NewList()
	for _, part := range parts {
		l.Items = append(l.Items, part)
	}
	return l, nil
}

// splitBy cuts a text at a separator, at most so often; less than 0 is always.
func splitBy(fromRight bool, s, separator string, most int64) []string {
	if !fromRight || most < 0 {
		if most < 0 || most > int64(len(s)) {
			return strings.Split(s, separator)
		}
		return strings.SplitN(s, separator, int(most)+1)
	}
	var parts []string
	for ; most > 0; most-- {
		at := strings.LastIndex(s, separator)
		if at < 0 {
			break
		}
		parts = append(parts, s[at+len(separator):])
		s = s[:at]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

func affixed(name, s string, args []Value) (Value, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("str.%s takes one argument", name)
	}
	of := []Value{args[0]}
	if l, is := args[0].(*List); is && l.tuple {
		of = l.Items
	}
	has := false
	for _, v := range of {
		affix, is := v.(string)
		if !is {
			return nil, fmt.Errorf("str.%s of %s", name, typeName(v))
		}
		has = has || name == "startswith" && strings.HasPrefix(s, affix) || name == "endswith" && strings.HasSuffix(s, affix)
	}
	return has, nil
}

var errASCII = errors.New("what Python makes of characters beyond ASCII depends on its version")

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

func changeCase(name, s string) (Value, error) {
	switch {
	case !isASCII(s):
		return nil, errASCII
	case name == "upper":
		return strings.ToUpper(s), nil
	case name == "lower":
		return strings.ToLower(s), nil
	case s == "":
		return s, nil
	}
	return strings.ToUpper(s[:1]) + strings.ToLower(s[1:]), nil
}

// replace is str.replace, of a text, by a text, at most so often.
func replace(r *render, s string, args arguments) (Value, error) {
	if err := args.only("old", "new", "count"); err != nil {
		return nil, err
	}
	from, _ := args.parameter(0, "old")
	to, _ := args.parameter(1, "new")
	old, isOld := from.(string)
	by, isBy := to.(string)
	if !isOld || !isBy {
		return nil, errors.New("replace takes two texts")
	}
	most := int64(-1)
	if count, given := args.parameter(2, "count"); given && count != nil {
		var is bool
		if most, is = integer(count); !is {
			return nil, errors.New("replace by a number that is none")
		}
	}
	if longest := len(s) + (len(s)+1)*len(by); old == "" && longest > maxOutput || len(old) > 0 && len(s)/len(old)*len(by) > maxOutput {
		return nil, errWork
	}
	out := strings.Replace(s, old, by, int(max(most, -1)))
	return out, r.charge(len(s) + len(out))
}

func search(name, s, part string) (Value, error) {
	position := func(at int) Value {
		if at < 0 {
			return int64(-1)
		}
		return int64(utf8.RuneCountInString(s[:at]))
	}
	switch name {
	case "find":
		return position(strings.Index(s, part)), nil
	case "rfind":
		return position(strings.LastIndex(s, part)), nil
	case "index":
		if at := strings.Index(s, part); at >= 0 {
			return position(at), nil
		}
		return nil, errors.New("the text has no such part")
	case "count":
		return int64(strings.Count(s, part)), nil
	case "removeprefix":
		return strings.TrimPrefix(s, part), nil
	case "removesuffix":
		return strings.TrimSuffix(s, part), nil
	}
	if part == "" {
		return nil, errors.New("a text is cut at no text")
	}
	before, after := s, ""
	at := strings.Index(s, part)
	if name == "rpartition" {
		before, after = "", s
		at = strings.LastIndex(s, part)
	}
	if at < 0 {
		part = ""
	} else {
		before, after = s[:at], s[at+len(part):]
	}
	if at < 0 && name == "rpartition" {
		return &List{Items: []Value{"", "", s}, tuple: true}, nil
	}
	return &List{Items: []Value{before, part, after}, tuple: true}, nil
}

// join is str.join, which takes texts only.
func join(r *render, separator string, args arguments) (Value, error) {
	if len(args.positional) != 1 || len(args.named) > 0 {
		return nil, errors.New("str.join takes one argument")
	}
	items, err := r.items(args.positional[0])
	if err != nil {
		return nil, err
	}
	if _, is := args.positional[0].(undefined); is {
		return nil, errors.New("str.join of what is undefined")
	}
	parts := make([]string, len(items))
	for i, item := range items {
		text, is := item.(string)
		if !is {
			return nil, fmt.Errorf("str.join of %s", typeName(item))
		}
		parts[i] = text
	}
	return r.joined(parts, separator)
}

// joined joins parts, unless that is too long.
func (r *render) joined(parts []string, separator string) (Value, error) {
	n := len(separator) * len(parts)
	for _, p := range parts {
		n += len(p)
	}
	if n > maxOutput {
		return nil, errWork
	}
	return strings.Join(parts, separator), r.charge(n)
}
