package jinja

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

func (e literal) evaluate(*render) (Value, error) { return e.value, nil }

func (e nameOf) evaluate(r *render) (Value, error) {
	if v, ok := r.scope.get(e.name); ok {
		return v, nil
	}
	if e.name == "lipsum" || e.name == "cycler" || e.name == "joiner" {
		return nil, fmt.Errorf("%s is not known", e.name)
	}
	return undefined(e), nil
}

func (e listOf) evaluate(r *render) (Value, error) {
	items, err := r.evalAll(e.items)
	return &List{Items: items}, err
}

func (e tupleOf) evaluate(r *render) (Value, error) {
	items, err := r.evalAll(e.items)
	return &List{Items: items, tuple: true}, err
}

func (e dictOf) evaluate(r *render) (Value, error) {
	d := new(Dict)
	for i := range e.keys {
		key, err := r.eval(e.keys[i])
		if err != nil {
			return nil, err
		}
		text, is := key.(string)
		if !is {
			return nil, errors.New("a key that is not text")
		}
		v, err := r.eval(e.values[i])
		if err != nil {
			return nil, err
		}
		d.Set(text, v)
	}
	return d, nil
}

func (e conditional) evaluate(r *render) (Value, error) {
	v, err := r.eval(e.condition)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return r.eval(e.then)
	case e.otherwise != nil:
		return r.eval(e.otherwise)
	}
	return undefined{}, nil
}

func (e negated) evaluate(r *render) (Value, error) {
	v, err := r.eval(e.of)
	return !truth(v), err
}

func (e signed) evaluate(r *render) (Value, error) {
	v, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	if f, is := v.(float64); is {
		if e.minus {
			f = -f
		}
		return f, nil
	}
	n, is := integer(v)
	if !is || n == math.MinInt64 {
		return nil, fmt.Errorf("a sign before %s", typeName(v))
	}
	if e.minus {
		n = -n
	}
	return n, nil
}

func (e concatenated) evaluate(r *render) (Value, error) {
	var b strings.Builder
	for _, part := range e.parts {
		v, err := r.eval(part)
		if err != nil {
			return nil, err
		}
		if _, safe := v.(safeText); safe {
			return nil, errSafe
		}
		text, err := str(v)
		if err != nil {
			return nil, err
		}
		b.WriteString(text)
		if b.Len() > maxOutput {
			return nil, errWork
		}
	}
	return b.String(), r.charge(b.Len())
}

var errSafe = errors.New("text that is marked as safe escapes what it is joined with")

func (e operated) evaluate(r *render) (Value, error) {
	left, err := r.eval(e.left)
	if err != nil {
		return nil, err
	}
	if e.operator == "and" || e.operator == "or" {
		if truth(left) == (e.operator == "or") {
			return left, nil
		}
		return r.eval(e.right)
	}
	right, err := r.eval(e.right)
	if err != nil {
		return nil, err
	}
	return r.operate(e.operator, left, right)
}

// operate is an arithmetic operator of Python.
func (r *render) operate(operator string, left, right Value) (Value, error) {
	switch a := left.(type) {
	case string:
		if b, is := right.(string); is && operator == "+" {
			if len(a)+len(b) > maxOutput {
				return nil, errWork
			}
			return a + b, r.charge(len(a) + len(b))
		}
		if n, is := integer(right); is && operator == "*" {
			if n = max(n, 0); len(a) > 0 && n > int64(maxOutput/len(a)) {
				return nil, errWork
			}
			return strings.Repeat(a, int(n)), r.charge(len(a) * int(n))
		}
	case *List:
		if b, is := right.(*List); is && operator == "+" && a.tuple == b.tuple {
			joined := append(append(make([]Value, 0, len(a.Items)+len(b.Items)), a.Items...), b.Items...)
			return &List{Items: joined, tuple: a.tuple}, r.charge(16 * len(joined))
		}
	}
	m, mInt := integer(left)
	n, nInt := integer(right)
	if mInt && nInt {
		return operateIntegers(operator, m, n)
	}
	x, _, xOK := number(left)
	y, _, yOK := number(right)
	if !xOK || !yOK || math.Abs(x) > 1<<53 && mInt || math.Abs(y) > 1<<53 && nInt {
		return nil, fmt.Errorf("%s %s %s", typeName(left), operator, typeName(right))
	}
	switch operator {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "/":
		if y != 0 {
			return x / y, nil
		}
	}
	return nil, fmt.Errorf("%s of floats", operator)
}

// operateIntegers refuses what leaves 64 bits: Python's integers do not.
func operateIntegers(operator string, m, n int64) (Value, error) {
	const most = 1 << 31 // no operation on smaller ones leaves 64 bits
	if m > most || m < -most || n > most || n < -most {
		return nil, errors.New("an operation on large integers")
	}
	if n == 0 && (operator == "/" || operator == "//" || operator == "%") {
		return nil, errors.New("division by zero")
	}
	switch operator {
	case "+":
		return m + n, nil
	case "-":
		return m - n, nil
	case "*":
		return m * n, nil
	case "/":
		return float64(m) / float64(n), nil
	}
	quotient, rest := m/n, m%n
	if rest != 0 && (rest < 0) != (n < 0) { // towards minus infinity
		quotient, rest = quotient-1, rest+n
	}
	if operator == "//" {
		return quotient, nil
	}
	return rest, nil
}

func (e compared) evaluate(r *render) (Value, error) {
	left, err := r.eval(e.first)
	if err != nil {
		return nil, err
	}
	for i, op := range e.operators {
		right, err := r.eval(e.others[i])
		if err != nil {
			return nil, err
		}
		holds, err := r.compare(op, left, right)
		if err != nil || !holds {
			return holds, err
		}
		left = right
	}
	return true, nil
}

func (r *render) compare(operator string, left, right Value) (bool, error) {
	switch operator {
	case "==", "!=":
		same, err := equal(left, right)
		return same == (operator == "=="), err
	case "in", "not in":
		in, err := r.contains(right, left)
		return in == (operator == "in"), err
	}
	c, err := compare(left, right)
	switch operator {
	case "<":
		return c < 0, err
	case "<=":
		return c <= 0, err
	case ">":
		return c > 0, err
	}
	return c >= 0, err
}

// contains is Python's in.
func (r *render) contains(container, v Value) (bool, error) {
	switch c := container.(type) {
	case string:
		s, is := v.(string)
		if !is {
			return false, fmt.Errorf("%s in a string", typeName(v))
		}
		return strings.Contains(c, s), r.charge(len(c))
	case *Dict:
		switch v := v.(type) {
		case string:
			_, has := c.Get(v)
			return has, nil
		case nil, bool, int64, float64, undefined:
			return false, nil
		}
		return false, fmt.Errorf("%s as a key", typeName(v))
	}
	items, err := r.items(container)
	if err != nil {
		return false, err
	}
	for i, item := range items {
		if same, err := equal(item, v); same || err != nil {
			if it, once := container.(*iterator); once {
				it.at -= len(items) - i - 1 // what follows is still to come
			}
			return same, err
		}
	}
	return false, r.charge(64 * len(items))
}

func (e attributeOf) evaluate(r *render) (Value, error) {
	of, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	v, err := attribute(of, e.name)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return subscript(of, e.name, e.name)
	}
	return v.value, nil
}

// found is a value that is there, which may be nil.
type found struct{ value Value }

// subscript is of[key] where that is there, else undefined.
func subscript(of, key Value, name string) (Value, error) {
	switch c := of.(type) {
	case *Dict:
		if k, is := key.(string); is {
			if v, ok := c.Get(k); ok {
				return v, nil
			}
		}
	case *List:
		if n, is := integer(key); is {
			if n < 0 {
				n += int64(len(c.Items))
			}
			if n >= 0 && n < int64(len(c.Items)) {
				return c.Items[n], nil
			}
		}
	case *view:
		if n, is := integer(key); is && c.indexed {
			return subscript(NewList(c.items...), n, name)
		}
	case string:
		if n, is := integer(key); is {
			if at, ok := character(c, n); ok {
				return at, nil
			}
		}
	case undefined:
		return nil, fmt.Errorf("%s is undefined and has no %s", c.name, name)
	case nil, bool, int64, float64, *namespace, *iterator, *function:
	default:
		return nil, fmt.Errorf("an item of %s", typeName(of))
	}
	return undefined{name}, nil
}

// character is the n-th of a text, from its end where n is negative.
func character(s string, n int64) (string, bool) {
	if n < 0 {
		n += int64(utf8.RuneCountInString(s))
	}
	for i, c := range s {
		if n == 0 {
			return s[i : i+utf8.RuneLen(c)], true
		}
		n--
	}
	return "", false
}

func (e itemOf) evaluate(r *render) (Value, error) {
	of, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	key, err := r.eval(e.key)
	if err != nil {
		return nil, err
	}
	if s, is := of.(string); is {
		if err := r.charge(len(s)); err != nil {
			return nil, err
		}
	}
	name, _ := key.(string)
	v, err := subscript(of, key, name)
	if _, missing := v.(undefined); err != nil || !missing || name == "" {
		return v, err
	}
	a, err := attribute(of, name) // as Jinja does where there is no such item
	if err != nil || a == nil {
		return v, err
	}
	return a.value, nil
}

func (e sliceOf) evaluate(r *render) (Value, error) {
	of, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int64
	for i, part := range []expression{e.from, e.to, e.step} {
		if part == nil {
			continue
		}
		v, err := r.eval(part)
		if err != nil {
			return nil, err
		}
		if n, is := integer(v); is {
			bounds[i] = &n
		} else if v != nil {
			return nil, fmt.Errorf("a slice by %s", typeName(v))
		}
	}
	switch c := of.(type) {
	case *List:
		items, err := sliced(c.Items, bounds)
		if err == nil {
			err = r.charge(16 * len(items))
		}
		return &List{Items: items, tuple: c.tuple}, err
	case string:
		characters := []rune(c)
		part, err := sliced(characters, bounds)
		if err == nil {
			err = r.charge(len(c))
		}
		return string(part), err
	}
	return nil, fmt.Errorf("a slice of %s", typeName(of))
}

// sliced is Python's slice of a list.
func sliced[T any](of []T, bounds [3]*int64) ([]T, error) {
	n, step := int64(len(of)), int64(1)
	if bounds[2] != nil {
		if step = *bounds[2]; step == 0 || step > math.MaxInt32 || step < math.MinInt32 {
			return nil, errors.New("the step of a slice")
		}
	}
	low, high := int64(0), n // where a bound may lie
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(b *int64, missing int64) int64 {
		if b == nil {
			return missing
		}
		at := *b
		if at < 0 {
			at += n
		}
		return min(max(at, low), high)
	}
	from, to := bound(bounds[0], low), bound(bounds[1], high)
	if step < 0 {
		from, to = bound(bounds[0], high), bound(bounds[1], low)
	}
	var out []T
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		out = append(out, of[i])
	}
	return out, nil
}

func (e called) evaluate(r *render) (Value, error) {
	callee, err := r.eval(e.callee)
	if err != nil {
		return nil, err
	}
	f, is := callee.(*function)
	if !is {
		return nil, fmt.Errorf("%s is not a function", typeName(callee))
	}
	args, err := e.with.evaluate(r)
	if err != nil {
		return nil, err
	}
	return f.call(r, args)
}

func (a callArguments) evaluate(r *render) (args arguments, err error) {
	if args.positional, err = r.evalAll(a.positional); err != nil {
		return args, err
	}
	values, err := r.evalAll(a.named)
	for i, v := range values {
		args.named = append(args.named, pair{a.names[i], v})
	}
	return args, err
}

func (e filtered) evaluate(r *render) (Value, error) {
	v, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	return e.apply(r, v)
}

// apply gives a value to the filter.
func (e filtered) apply(r *render, v Value) (Value, error) {
	args, err := e.with.evaluate(r)
	if err != nil {
		return nil, err
	}
	return r.filter(e.name, v, args)
}

func (e tested) evaluate(r *render) (Value, error) {
	v, err := r.eval(e.of)
	if err != nil {
		return nil, err
	}
	args, err := e.with.evaluate(r)
	if err != nil {
		return nil, err
	}
	return r.test(e.name, v, args)
}
