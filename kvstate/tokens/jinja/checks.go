package jinja

import (
	"errors"
	"fmt"
	"math/big"
)

// test is a test of Jinja: what follows is.
func (r *render) test(name string, v Value, args arguments) (bool, error) {
	if holds, known := typeTest(name, v); known {
		return holds, args.only()
	}
	if operator, known := testOperators[name]; known {
		if len(args.positional) != 1 || len(args.named) > 0 {
			return false, fmt.Errorf("the test %s takes one value", name)
		}
		return r.compare(operator, v, args.positional[0])
	}
	switch name {
	case "odd", "even", "divisibleby":
		by := int64(2)
		if name == "divisibleby" {
			if len(args.positional) != 1 {
				return false, errors.New("divisibleby takes one number")
			}
			by, _ = integer(args.positional[0])
		}
		n, is := integer(v)
		if !is || by == 0 {
			return false, fmt.Errorf("%s is %s", typeName(v), name)
		}
		return (n%by == 0) == (name != "odd"), nil
	case "lower", "upper":
		return false, errASCII
	}
	return false, fmt.Errorf("the test %s is not known", name)
}

var testOperators = map[string]string{
	"equalto": "==", "eq": "==", "==": "==", "ne": "!=", "!=": "!=", "in": "in",
	"lt": "<", "lessthan": "<", "<": "<", "le": "<=", "<=": "<=",
	"gt": ">", "greaterthan": ">", ">": ">", "ge": ">=", ">=": ">=",
}

// typeTest are the tests of what a value is.
func typeTest(name string, v Value) (holds, known bool) {
	_, isUndefined := v.(undefined)
	_, isString := v.(string)
	_, isSafe := v.(safeText)
	_, isList := v.(*List)
	_, isDict := v.(*Dict)
	_, isBool := v.(bool)
	_, isInt := v.(int64)
	_, isBig := v.(*big.Int)
	_, isFloat := v.(float64)
	switch name {
	case "defined":
		return !isUndefined, true
	case "undefined":
		return isUndefined, true
	case "none":
		return v == nil, true
	case "string":
		return isString || isSafe, true
	case "mapping":
		return isDict, true
	case "boolean":
		return isBool, true
	case "true":
		return v == true, true
	case "false":
		return v == false, true
	case "integer":
		return isInt || isBig, true
	case "float":
		return isFloat, true
	case "number":
		return isBool || isInt || isBig || isFloat, true
	case "callable":
		_, isFunction := v.(*function)
		return isFunction, true
	case "sequence", "iterable":
		of, isView := v.(*view)
		_, isIterator := v.(*iterator)
		loose := isIterator || isView && !of.indexed
		return isUndefined || isString || isSafe || isList || isDict || isView && of.indexed || loose && name == "iterable", true
	}
	return false, false
}

// globals are the functions that every template has.
var globals = &scope{names: map[string]Value{
	"range":     &function{"range", rangeOf},
	"namespace": &function{"namespace", newNamespace},
	"dict":      &function{"dict", newDict},
	"raise_exception": &function{"raise_exception", func(_ *render, args arguments) (Value, error) {
		message, _ := args.parameter(0, "message")
		text, _ := str(message)
		return nil, fmt.Errorf("the template refuses it: %s", text)
	}},
	"strftime_now": &function{"strftime_now", func(*render, arguments) (Value, error) { return nil, ErrDate }},
}}

// maxRange is Jinja's own bound.
const maxRange = 100_000

// rangeOf is Python's range: up to an end, from a start, by a step.
func rangeOf(r *render, args arguments) (Value, error) {
	n := len(args.positional)
	if n < 1 || n > 3 || len(args.named) > 0 {
		return nil, errors.New("range takes an end, or a start, an end and a step")
	}
	var bounds [3]int64
	for i, v := range args.positional {
		at, is := integer(v)
		if !is || at > 1<<31 || at < -1<<31 {
			return nil, fmt.Errorf("range of %s", typeName(v))
		}
		bounds[i] = at
	}
	start, end, step := bounds[0], bounds[1], bounds[2]
	switch n {
	case 1:
		start, end, step = 0, bounds[0], 1
	case 2:
		step = 1
	}
	if step == 0 {
		return nil, errors.New("range by a step of 0")
	}
	out := &view{indexed: true}
	for i := start; step > 0 && i < end || step < 0 && i > end; i += step {
		if len(out.items) == maxRange {
			return nil, errors.New("the range is too long")
		}
		out.items = append(out.items, i)
	}
	return out, r.charge(64 * len(out.items))
}

// newNamespace makes a namespace of mappings and named values.
func newNamespace(r *render, args arguments) (Value, error) {
	v, err := newDict(r, args)
	if err != nil {
		return nil, err
	}
	return &namespace{*v.(*Dict)}, nil
}

func newDict(_ *render, args arguments) (Value, error) {
	d := new(Dict)
	if len(args.positional) > 1 {
		return nil, errors.New("dict takes one mapping")
	}
	for _, v := range args.positional {
		from, is := v.(*Dict)
		if !is {
			return nil, fmt.Errorf("dict of %s", typeName(v))
		}
		for k, v := range from.All {
			d.Set(k, v)
		}
	}
	for _, p := range args.named {
		d.Set(p.key, p.value)
	}
	return d, nil
}
