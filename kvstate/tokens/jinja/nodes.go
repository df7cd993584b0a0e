package jinja

// expression is what has a value.
type expression interface{ evaluate(*render) (Value, error) }

// statement is what writes, or sets a name.
type statement interface{ execute(*render) error }

// Expressions.
type (
	literal  struct{ value Value }
	nameOf   struct{ name string }
	listOf   struct{ items []expression }
	tupleOf  struct{ items []expression }
	dictOf   struct{ keys, values []expression }
	operated struct {
		operator    string
		left, right expression
	}
	signed struct {
		minus bool
		of    expression
	}
	negated  struct{ of expression }
	compared struct {
		first     expression
		operators []string
		others    []expression
	}
	concatenated struct{ parts []expression }
	conditional  struct{ condition, then, otherwise expression } // otherwise may be nil
	attributeOf  struct {
		of   expression
		name string
	}
	itemOf  struct{ of, key expression }
	sliceOf struct{ of, from, to, step expression } // nil where left out
	called  struct {
		callee expression
		with   callArguments
	}
	filtered struct {
		of   expression
		name string
		with callArguments
	}
	tested struct {
		of   expression
		name string
		with callArguments
	}
)

type callArguments struct {
	positional []expression
	names      []string
	named      []expression
}

// Statements.
type (
	text   struct{ text string }
	output struct{ of expression }
	branch struct { // if, elif, else
		conditions []expression
		bodies     [][]statement // one more than conditions where there is an else
	}
	loop struct {
		targets   []string // more than one unpacks
		over      expression
		condition expression // nil: all
		body      []statement
		otherwise []statement
	}
	assignment struct {
		targets   []string
		attribute string // of a namespace
		value     expression
	}
	capture struct { // a set block
		target  string
		body    []statement
		filters []filtered // of is nil
	}
	macro struct {
		name       string
		parameters []string
		defaults   []expression // of the last parameters
		body       []statement
	}
	jump struct{ isBreak bool }
)
