package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// How much one render may do.
const (
	maxSteps  = 1 << 20  // expressions and statements, and one for each 64 bytes of text made
	maxOutput = 32 << 20 // bytes
	maxCalls  = 64       // of macros in each other
)

// Errors that callers tell apart from a template that fails.
var (
	// ErrDate is that the template writes the date: an engine writes that of its clock and zone.
	ErrDate = errors.New("the template writes the date")
	errWork = errors.New("the template takes too much work")
)

// Signals of loops.
var (
	errBreak    = errors.New("break is outside of a loop")
	errContinue = errors.New("continue is outside of a loop")
)

// render is one run of a template.
type render struct {
	out   *strings.Builder
	scope *scope
	steps int
	calls int // of macros, under way
}

// scope holds the names that a template, a macro's call or a round of a loop has set. Names that
// it has not are those of the scope around it.
type scope struct {
	names  map[string]Value
	parent *scope
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.parent {
		if v, ok := s.names[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	if s.names == nil {
		s.names = make(map[string]Value)
	}
	s.names[name] = v
}

// Render returns the text that the template makes of variables, which it does not change. An
// error says that there is none that is known to be Python's.
func (t *Template) Render(variables map[string]Value) (string, error) {
	r := &render{out: new(strings.Builder), scope: &scope{names: variables, parent: globals}}
	r.scope = &scope{parent: r.scope}
	if err := r.run(t.body); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// charge counts steps for making so many bytes of text, and for itself.
func (r *render) charge(bytes int) error {
	if r.steps += 1 + bytes/64; r.steps > maxSteps {
		return errWork
	}
	return nil
}

func (r *render) run(body []statement) error {
	for _, s := range body {
		if err := r.charge(0); err != nil {
			return err
		}
		if err := s.execute(r); err != nil {
			return err
		}
	}
	return nil
}

// eval evaluates an expression.
func (r *render) eval(e expression) (Value, error) {
	if err := r.charge(0); err != nil {
		return nil, err
	}
	return e.evaluate(r)
}

// evalAll evaluates expressions in order.
func (r *render) evalAll(of []expression) ([]Value, error) {
	values := make([]Value, len(of))
	for i, e := range of {
		v, err := r.eval(e)
		if err != nil {
			return nil, err
		}
		values[i] = v
	}
	return values, nil
}

// write appends to the output.
func (r *render) write(s string) error {
	if r.out.Len()+len(s) > maxOutput {
		return errWork
	}
	r.out.WriteString(s)
	return r.charge(len(s))
}

// captured runs a body in a scope of its own and returns what it writes.
func (r *render) captured(body []statement, in *scope) (string, error) {
	out, around := r.out, r.scope
	r.out, r.scope = new(strings.Builder), in
	defer func() { r.out, r.scope = out, around }()
	err := r.run(body)
	return r.out.String(), err
}

func (s text) execute(r *render) error { return r.write(s.text) }

func (s output) execute(r *render) error {
	v, err := r.eval(s.of)
	if err != nil {
		return err
	}
	text, err := str(v)
	if err != nil {
		return err
	}
	return r.write(text)
}

func (s branch) execute(r *render) error {
	for i, condition := range s.conditions {
		v, err := r.eval(condition)
		if err != nil {
			return err
		}
		if truth(v) {
			return r.run(s.bodies[i])
		}
	}
	if len(s.bodies) > len(s.conditions) {
		return r.run(s.bodies[len(s.bodies)-1])
	}
	return nil
}

func (s jump) execute(*render) error {
	if s.isBreak {
		return errBreak
	}
	return errContinue
}

func (s assignment) execute(r *render) error {
	v, err := r.eval(s.value)
	if err != nil {
		return err
	}
	if s.attribute == "" {
		return r.bind(s.targets, v)
	}
	target, _ := r.scope.get(s.targets[0])
	ns, is := target.(*namespace)
	if !is {
		return fmt.Errorf("%s is not a namespace", s.targets[0])
	}
	ns.attributes.Set(s.attribute, v)
	return nil
}

// bind sets a name, or several to the items of a value.
func (r *render) bind(targets []string, v Value) error {
	if len(targets) == 1 {
		r.scope.set(targets[0], v)
		return nil
	}
	items, err := r.items(v)
	if err != nil {
		return err
	}
	if len(items) != len(targets) {
		return fmt.Errorf("%d values for %d names", len(items), len(targets))
	}
	for i, name := range targets {
		r.scope.set(name, items[i])
	}
	return nil
}

func (s capture) execute(r *render) error {
	text, err := r.captured(s.body, &scope{parent: r.scope})
	var v Value = text
	for _, f := range s.filters {
		if err == nil {
			v, err = f.apply(r, v)
		}
	}
	if err != nil {
		return err
	}
	r.scope.set(s.target, v)
	return nil
}

func (m *macro) execute(r *render) error {
	around := r.scope
	r.scope.set(m.name, &function{m.name, func(r *render, args arguments) (Value, error) { return m.called(r, args, around) }})
	return nil
}

// called runs a macro in the scope in which it stands.
func (m *macro) called(r *render, args arguments, around *scope) (Value, error) {
	if err := args.only(m.parameters...); err != nil {
		return nil, fmt.Errorf("macro %s: %w", m.name, err)
	}
	if r.calls++; r.calls > maxCalls {
		return nil, errWork
	}
	defer func() { r.calls-- }()
	in := &scope{parent: around}
	caller := r.scope
	r.scope = in
	defer func() { r.scope = caller }()
	for i, name := range m.parameters {
		v, given := args.parameter(i, name)
		if optional := i - (len(m.parameters) - len(m.defaults)); !given && optional >= 0 {
			var err error
			if v, err = r.eval(m.defaults[optional]); err != nil {
				return nil, err
			}
		} else if !given {
			v = undefined{name}
		}
		in.set(name, v)
	}
	text, err := r.captured(m.body, in)
	return text, err
}

func (l loop) execute(r *render) error {
	over, err := r.eval(l.over)
	if err != nil {
		return err
	}
	items, err := r.items(over)
	if err != nil {
		return err
	}
	around := r.scope
	defer func() { r.scope = around }()
	if items, err = l.filter(r, items); err != nil {
		return err
	}
	state := &loopState{items: items}
	for i := range items {
		if err := r.charge(0); err != nil {
			return err
		}
		r.scope = &scope{parent: around}
		state.at = i
		r.scope.set("loop", state)
		if err := r.bind(l.targets, items[i]); err != nil {
			return err
		}
		err := r.run(l.body)
		if errors.Is(err, errBreak) {
			if it, once := over.(*iterator); once {
				it.broken = true
			}
			break
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	if len(items) > 0 {
		return nil
	}
	r.scope = &scope{parent: around}
	return r.run(l.otherwise)
}

// filter keeps the items for which the loop's condition holds.
func (l loop) filter(r *render, items []Value) ([]Value, error) {
	if l.condition == nil {
		return items, nil
	}
	around := r.scope
	defer func() { r.scope = around }()
	var kept []Value
	for _, item := range items {
		if err := r.charge(0); err != nil {
			return nil, err
		}
		r.scope = &scope{parent: around}
		if err := r.bind(l.targets, item); err != nil {
			return nil, err
		}
		v, err := r.eval(l.condition)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			kept = append(kept, item)
		}
	}
	return kept, nil
}

// loopState is the variable loop.
type loopState struct {
	items []Value
	at    int
}

func (l *loopState) attribute(name string) (Value, error) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.at + 1), nil
	case "index0":
		return int64(l.at), nil
	case "revindex":
		return int64(n - l.at), nil
	case "revindex0":
		return int64(n - l.at - 1), nil
	case "first":
		return l.at == 0, nil
	case "last":
		return l.at == n-1, nil
	case "length":
		return int64(n), nil
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1], nil
		}
		return undefined{name}, nil
	case "nextitem":
		if l.at+1 < n {
			return l.items[l.at+1], nil
		}
		return undefined{name}, nil
	}
	return nil, fmt.Errorf("loop.%s is not known", name)
}

// items are what a loop over a value goes through.
func (r *render) items(v Value) ([]Value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		return v.Items, nil
	case *Dict:
		keys := make([]Value, v.Len())
		for i, p := range v.pairs {
			keys[i] = p.key
		}
		return keys, r.charge(16 * len(keys))
	case string:
		var characters []Value
		for _, c := range v {
			characters = append(characters, string(c))
		}
		return characters, r.charge(64 * len(v))
	case *iterator:
		if v.broken {
			return nil, errors.New("what a loop left of an iterator")
		}
		return v.rest(), nil
	case *view:
		return v.items, nil
	}
	return nil, fmt.Errorf("%s cannot be gone through", typeName(v))
}
