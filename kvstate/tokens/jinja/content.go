package jinja

import "slices"

// contentLoops collects what shows whether a template loops over the content of messages.
type contentLoops struct {
	direct bool        // one does
	given  []givenLoop // loops over a parameter of a macro
	calls  []called
}

type givenLoop struct {
	macro     *macro
	parameter string
}

// add takes in what a loop goes over, within macros.
func (l *contentLoops) add(over expression, within []*macro) {
	over = withoutFilters(over)
	l.direct = l.direct || isContent(over)
	of, is := over.(nameOf)
	if !is {
		return
	}
	l.direct = l.direct || of.name == "content"
	for _, m := range within {
		if slices.Contains(m.parameters, of.name) {
			l.given = append(l.given, givenLoop{m, of.name})
		}
	}
}

// found reports whether a loop goes over a content, or over a parameter that a call gives one.
func (l *contentLoops) found() bool {
	return l.direct || slices.ContainsFunc(l.given, func(g givenLoop) bool {
		return slices.ContainsFunc(l.calls, g.isGivenContent)
	})
}

func (g givenLoop) isGivenContent(c called) bool {
	if of, is := c.callee.(nameOf); !is || of.name != g.macro.name {
		return false
	}
	for i, argument := range c.with.positional {
		if i < len(g.macro.parameters) && g.macro.parameters[i] == g.parameter && isContent(withoutFilters(argument)) {
			return true
		}
	}
	for i, name := range c.with.names {
		if name == g.parameter && isContent(withoutFilters(c.with.named[i])) {
			return true
		}
	}
	return false
}

// withoutFilters is the value to which filters, tests and slices are applied.
func withoutFilters(e expression) expression {
	for {
		switch of := e.(type) {
		case filtered:
			e = of.of
		case tested:
			e = of.of
		case sliceOf:
			e = of.of
		default:
			return e
		}
	}
}

// isContent reports whether an expression is the attribute or item content of a value.
func isContent(e expression) bool {
	switch e := e.(type) {
	case attributeOf:
		return e.name == "content"
	case itemOf:
		key, is := e.key.(literal)
		return is && key.value == "content"
	case conditional:
		return isContent(e.then) || e.otherwise != nil && isContent(e.otherwise)
	case operated:
		return isContent(e.left) || isContent(e.right)
	}
	return false
}
