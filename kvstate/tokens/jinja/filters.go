package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// filter applies a filter of Jinja.
func (r *render) filter(name string, v Value, args arguments) (Value, error) {
	if _, safe := v.(safeText); safe && name != "safe" {
		return nil, errSafe
	}
	switch name {
	case "tojson":
		return tojson(r, v, args)
	case "length", "count":
		return r.length(v)
	case "default", "d":
		return fallback(v, args)
	case "safe":
		text, err := str(v)
		return safeText(text), err
	case "string", "trim", "upper", "lower", "capitalize", "replace", "indent":
		return r.filterText(name, v, args)
	case "join":
		return r.filterJoin(v, args)
	case "items":
		return filterItems(r, v, args)
	case "int", "float":
		return convert(name, v, args)
	case "abs":
		if n, is := integer(v); is && n < 0 {
			return -n, args.only()
		}
		return v, args.only()
	case "dictsort":
		return r.dictSort(v, args)
	case "first", "last", "list", "reverse", "unique", "sort":
		return r.filterItems(name, v, args)
	case "map":
		return r.mapped(v, args)
	case "select", "reject", "selectattr", "rejectattr":
		return r.selected(name, v, args)
	}
	return nil, fmt.Errorf("the filter %s is not known", name)
}

// length is Python's len.
func (r *render) length(v Value) (Value, error) {
	switch v := v.(type) {
	case undefined:
		return int64(0), nil
	case string:
		return int64(utf8.RuneCountInString(v)), r.charge(len(v))
	case *List:
		return int64(len(v.Items)), nil
	case *Dict:
		return int64(v.Len()), nil
	case *view:
		return int64(len(v.items)), nil
	}
	return nil, fmt.Errorf("%s has no length", typeName(v))
}

func fallback(v Value, args arguments) (Value, error) {
	if err := args.only("default_value", "boolean"); err != nil {
		return nil, err
	}
	_, missing := v.(undefined)
	if boolean, ok := args.parameter(1, "boolean"); ok && truth(boolean) {
		missing = missing || !truth(v)
	}
	if !missing {
		return v, nil
	}
	if d, ok := args.parameter(0, "default_value"); ok {
		return d, nil
	}
	return "", nil
}

// filterText are the filters that take a value as text.
func (r *render) filterText(name string, v Value, args arguments) (Value, error) {
	s, err := str(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(len(s)); err != nil {
		return nil, err
	}
	switch name {
	case "string":
		return s, args.only()
	case "trim":
		if err := args.only("chars"); err != nil {
			return nil, err
		}
		chars, _ := args.parameter(0, "chars")
		return strip("strip", s, []Value{chars})
	case "replace":
		return replace(r, s, args)
	case "indent":
		return indent(r, s, args)
	}
	if err := args.only(); err != nil {
		return nil, err
	}
	return changeCase(name, s)
}

// indent puts spaces before lines: all but the first, and all but empty ones.
func indent(r *render, s string, args arguments) (Value, error) {
	if err := args.only("width", "first", "blank"); err != nil {
		return nil, err
	}
	if strings.ContainsAny(s, "\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029") {
		return nil, errors.New("indent of a text with other ends of lines")
	}
	by := "    "
	if width, given := args.parameter(0, "width"); given {
		n, isNumber := integer(width)
		text, isText := width.(string)
		if isNumber && n <= 64 {
			text = strings.Repeat(" ", int(max(n, 0)))
		} else if !isText || len(text) > 64 {
			return nil, errors.New("indent by a width that is not known")
		}
		by = text
	}
	first, _ := args.parameter(1, "first")
	blank, _ := args.parameter(2, "blank")
	if len(s)*(1+len(by)) > maxOutput {
		return nil, errWork
	}
	// Jinja adds a newline before it cuts into lines, so that a last one counts.
	lines := strings.Split(s, "\n")
	for i := 1; i < len(lines); i++ {
		if lines[i] != "" || truth(blank) {
			lines[i] = by + lines[i]
		}
	}
	if truth(first) {
		lines[0] = by + lines[0]
	}
	return r.joined(lines, "\n")
}

func (r *render) filterJoin(v Value, args arguments) (Value, error) {
	if err := args.only("d", "attribute"); err != nil {
		return nil, err
	}
	d, given := args.parameter(0, "d")
	separator, is := d.(string)
	if given && !is {
		return nil, errors.New("join by what is not text")
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	by, hasAttribute := args.parameter(1, "attribute")
	parts := make([]string, len(items))
	for i, item := range items {
		if hasAttribute && by != nil {
			if item, err = r.byAttribute(item, by); err != nil {
				return nil, err
			}
		}
		if _, safe := item.(safeText); safe {
			return nil, errSafe
		}
		if parts[i], err = str(item); err != nil {
			return nil, err
		}
	}
	return r.joined(parts, separator)
}

func filterItems(r *render, v Value, args arguments) (Value, error) {
	switch v := v.(type) {
	case undefined:
		return &iterator{}, args.only()
	case *Dict:
		all, err := methodOfDict("items")(r, v, args)
		if err != nil {
			return nil, err
		}
		return &iterator{items: all.(*view).items}, nil
	}
	return nil, fmt.Errorf("items of %s", typeName(v))
}

// convert makes a number of a value; of a text where it is one as Go and Python both read it.
func convert(name string, v Value, args arguments) (Value, error) {
	if err := args.only("default"); err != nil {
		return nil, err
	}
	if n, is := integer(v); is {
		if name == "int" {
			return n, nil
		}
		return float64(n), nil
	}
	if f, is := v.(float64); is {
		if name == "float" {
			return f, nil
		}
		if f > -1<<53 && f < 1<<53 {
			return int64(f), nil
		}
		return nil, errors.New("int of a large number")
	}
	s, is := v.(string)
	if !is || strings.Trim(s, "0123456789") != "" || s == "" || len(s) > 15 {
		return nil, fmt.Errorf("a number of %s", typeName(v))
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if name == "float" {
		return float64(n), err
	}
	return n, err
}

// dictSort returns the pairs of a mapping in the order of their keys, in lower case.
func (r *render) dictSort(v Value, args arguments) (Value, error) {
	d, is := v.(*Dict)
	if !is || len(args.positional)+len(args.named) > 0 {
		return nil, errors.New("dictsort with arguments, or of what is not a mapping")
	}
	all, err := methodOfDict("items")(r, d, arguments{})
	if err != nil {
		return nil, err
	}
	items := all.(*view).items
	key := func(v Value) string { return v.(*List).Items[0].(string) }
	for _, item := range items {
		if !isASCII(key(item)) {
			return nil, errASCII
		}
	}
	slices.SortStableFunc(items, func(a, b Value) int {
		return strings.Compare(strings.ToLower(key(a)), strings.ToLower(key(b)))
	})
	return NewList(items...), nil
}

// filterItems are the filters that go through a value.
func (r *render) filterItems(name string, v Value, args arguments) (Value, error) {
	if err := args.only(); err != nil {
		return nil, err
	}
	if _, once := v.(*iterator); once && name == "last" {
		return nil, errors.New("the last of an iterator")
	}
	if it, once := v.(*iterator); once && name == "first" && !it.broken && it.at < len(it.items) {
		it.at++
		return it.items[it.at-1], nil
	}
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	if err := r.charge(64 * len(items)); err != nil {
		return nil, err
	}
	switch name {
	case "list":
		return NewList(slices.Clone(items)...), nil
	case "first", "last":
		if len(items) == 0 {
			return undefined{name}, nil
		}
		if name == "first" {
			return items[0], nil
		}
		return items[len(items)-1], nil
	case "reverse":
		return r.reversed(v, items)
	case "unique":
		return unique(items)
	}
	return sorted(items)
}

// reversed is a text backwards, or an iterator.
func (r *render) reversed(v Value, items []Value) (Value, error) {
	backwards := slices.Clone(items)
	slices.Reverse(backwards)
	if _, is := v.(string); !is {
		return &iterator{items: backwards}, nil
	}
	var b strings.Builder
	for _, c := range backwards {
		b.WriteString(c.(string))
	}
	return b.String(), nil
}

// lowerASCII are texts as sort and unique compare them: in lower case.
func lowerASCII(items []Value) ([]string, error) {
	lower := make([]string, len(items))
	for i, item := range items {
		s, is := item.(string)
		if !is || !isASCII(s) {
			return nil, errASCII
		}
		lower[i] = strings.ToLower(s)
	}
	return lower, nil
}

func unique(items []Value) (Value, error) {
	lower, err := lowerASCII(items)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	out := &iterator{}
	for i, s := range lower {
		if !seen[s] {
			seen[s] = true
			out.items = append(out.items, items[i])
		}
	}
	return out, nil
}

// sorted orders integers, or texts in lower case.
func sorted(items []Value) (Value, error) {
	out := slices.Clone(items)
	if !slices.ContainsFunc(items, func(v Value) bool { _, is := v.(int64); return !is }) {
		slices.SortFunc(out, func(a, b Value) int { return cmp.Compare(a.(int64), b.(int64)) })
		return NewList(out...), nil
	}
	if _, err := lowerASCII(items); err != nil {
		return nil, err
	}
	slices.SortStableFunc(out, func(a, b Value) int {
		return strings.Compare(strings.ToLower(a.(string)), strings.ToLower(b.(string)))
	})
	return NewList(out...), nil
}

// byAttribute is what a name of attributes with dots between them finds in a value.
func (r *render) byAttribute(v Value, path Value) (Value, error) {
	if n, is := integer(path); is {
		return subscript(v, n, "")
	}
	text, is := path.(string)
	if !is {
		return nil, errors.New("an attribute whose name is not text")
	}
	for part := range strings.SplitSeq(text, ".") {
		var err error
		if strings.Trim(part, "0123456789") == "" && part != "" {
			n, _ := strconv.ParseInt(part, 10, 32)
			v, err = subscript(v, n, part)
		} else {
			v, err = itemOf{literal{v}, literal{part}}.evaluate(r)
		}
		if err != nil {
			return nil, err
		}
	}
	return v, nil
}

// mapped is map: an attribute of each item, or a filter of each.
func (r *render) mapped(v Value, args arguments) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	var of func(Value) (Value, error)
	if by, ok := args.parameter(1, "attribute"); ok && len(args.positional) == 0 {
		if err := args.only("", "attribute", "default"); err != nil {
			return nil, err
		}
		missing, hasDefault := args.parameter(2, "default")
		of = func(v Value) (Value, error) {
			found, err := r.byAttribute(v, by)
			if _, is := found.(undefined); is && hasDefault {
				return missing, err
			}
			return found, err
		}
	} else if len(args.positional) > 0 {
		name, _ := args.positional[0].(string)
		rest := arguments{args.positional[1:], args.named}
		of = func(v Value) (Value, error) { return r.filter(name, v, rest) }
	} else {
		return nil, errors.New("map by what is not known")
	}
	out := &iterator{}
	for _, item := range items {
		if err := r.charge(0); err != nil {
			return nil, err
		}
		v, err := of(item)
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, v)
	}
	return out, nil
}

// selected are select, reject and the same by an attribute: with a test, or by truth.
func (r *render) selected(name string, v Value, args arguments) (Value, error) {
	items, err := r.items(v)
	if err != nil {
		return nil, err
	}
	positional := args.positional
	var by Value
	if strings.HasSuffix(name, "attr") {
		if len(positional) == 0 {
			return nil, errors.New("an attribute is missing")
		}
		by, positional = positional[0], positional[1:]
	}
	out := &iterator{}
	for _, item := range items {
		of := item
		if by != nil {
			if of, err = r.byAttribute(item, by); err != nil {
				return nil, err
			}
		}
		holds := truth(of)
		if len(positional) > 0 {
			test, _ := positional[0].(string)
			if holds, err = r.test(test, of, arguments{positional[1:], args.named}); err != nil {
				return nil, err
			}
		}
		if err := r.charge(0); err != nil {
			return nil, err
		}
		if holds == strings.HasPrefix(name, "select") {
			out.items = append(out.items, item)
		}
	}
	return out, nil
}
