package jinja

import (
	"fmt"
	"slices"
	"strconv"
)

// Template is a parsed template. It may be rendered by many goroutines.
type Template struct {
	body        []statement
	overContent bool
}

// Parse reads a template. Statements that this package does not know are errors.
func Parse(source string) (*Template, error) {
	tokens, err := tokenize(source)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.statements()
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", p.peek().line, err)
	}
	return &Template{body: body, overContent: p.loops.found()}, nil
}

// LoopsOverContent reports whether a loop of the template goes over the content of messages, or
// may: engines give such a template lists of parts where others get text. It finds what vLLM 0.32.0
// finds (renderers/hf.py, _iter_nodes_assign_content_item), and more.
func (t *Template) LoopsOverContent() bool { return t.overContent }

// parser reads tokens. Its methods follow Jinja's precedence.
type parser struct {
	tokens []token
	at     int
	depth  int
	macros []*macro // around the place
	loops  contentLoops
}

// maxNesting bounds how deep a template nests.
const maxNesting = 200

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != endOfTemplate {
		p.at++
	}
	return t
}

// is reports whether the next token is this name or operator.
func (p *parser) is(k kind, text string) bool { return p.peek().kind == k && p.peek().text == text }

// accept takes the next token where it is this one.
func (p *parser) accept(k kind, text string) bool {
	if p.is(k, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(k kind, text string) error {
	if !p.accept(k, text) {
		return fmt.Errorf("%q where %q should be", p.peek().text, text)
	}
	return nil
}

func (p *parser) expectName() (string, error) {
	if t := p.next(); t.kind == name {
		return t.text, nil
	}
	return "", fmt.Errorf("a name is missing")
}

// endBlock takes the end of a block.
func (p *parser) endBlock() error {
	if p.next().kind != blockEnd {
		return fmt.Errorf("the end of a block is missing")
	}
	return nil
}

// statements reads up to a block whose name ends what is around, and leaves it at the name.
func (p *parser) statements(ends ...string) (body []statement, err error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("blocks are nested too deep")
	}
	defer func() { p.depth-- }()
	for {
		switch t := p.next(); t.kind {
		case data:
			body = append(body, text{t.text})
		case variableBegin:
			of, err := p.tuple(true)
			if err != nil {
				return nil, err
			}
			if p.next().kind != variableEnd {
				return nil, fmt.Errorf("the end of an expression is missing")
			}
			body = append(body, output{of})
		case blockBegin:
			if p.peek().kind == name && slices.Contains(ends, p.peek().text) {
				return body, nil
			}
			s, err := p.block()
			if err != nil {
				return nil, err
			}
			body = append(body, s...)
		case endOfTemplate:
			if len(ends) > 0 {
				return nil, fmt.Errorf("%s is missing", ends[0])
			}
			return body, nil
		default:
			return nil, fmt.Errorf("%q is out of place", t.text)
		}
	}
}

// block reads a statement from its name on.
func (p *parser) block() ([]statement, error) {
	keyword, err := p.expectName()
	if err != nil {
		return nil, err
	}
	var s statement
	switch keyword {
	case "if":
		s, err = p.branch()
	case "for":
		s, err = p.loop()
	case "set":
		s, err = p.assignment()
	case "macro":
		s, err = p.macro()
	case "generation": // marks what the assistant wrote, and is of no effect here
		if err = p.endBlock(); err != nil {
			return nil, err
		}
		return p.bodyUntil("endgeneration")
	case "break", "continue":
		s, err = jump{keyword == "break"}, p.endBlock()
	default:
		err = fmt.Errorf("the statement %s is not known", keyword)
	}
	return []statement{s}, err
}

// bodyUntil reads a body and the block that ends it.
func (p *parser) bodyUntil(end string) ([]statement, error) {
	body, err := p.statements(end)
	if err != nil {
		return nil, err
	}
	p.next()
	return body, p.endBlock()
}

func (p *parser) branch() (statement, error) {
	var b branch
	for {
		condition, err := p.tuple(false)
		if err != nil {
			return nil, err
		}
		if err := p.endBlock(); err != nil {
			return nil, err
		}
		body, err := p.statements("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		b.conditions, b.bodies = append(b.conditions, condition), append(b.bodies, body)
		switch p.next().text {
		case "elif":
			continue
		case "else":
			if err := p.endBlock(); err != nil {
				return nil, err
			}
			body, err := p.bodyUntil("endif")
			b.bodies = append(b.bodies, body)
			return b, err
		}
		return b, p.endBlock()
	}
}

// targets reads the names that a loop or a set gives values.
func (p *parser) targets() (names []string, err error) {
	parenthesis := p.accept(operator, "(")
	for {
		n, err := p.expectName()
		if err != nil {
			return nil, err
		}
		if slices.Contains(reserved, n) {
			return nil, fmt.Errorf("%s cannot be set", n)
		}
		names = append(names, n)
		if !p.accept(operator, ",") {
			break
		}
	}
	if parenthesis {
		err = p.expect(operator, ")")
	}
	return names, err
}

// reserved are names that mean something else than a variable.
var reserved = []string{"true", "false", "none", "True", "False", "None", "loop", "varargs", "kwargs", "caller", "self", "super"}

func (p *parser) loop() (statement, error) {
	var l loop
	var err error
	if l.targets, err = p.targets(); err != nil {
		return nil, err
	}
	if err = p.expect(name, "in"); err != nil {
		return nil, err
	}
	if l.over, err = p.tuple(false); err != nil {
		return nil, err
	}
	p.loops.add(l.over, p.macros)
	if p.accept(name, "if") {
		if l.condition, err = p.expression(); err != nil {
			return nil, err
		}
	}
	if err = p.endBlock(); err != nil {
		return nil, err
	}
	if l.body, err = p.statements("else", "endfor"); err != nil {
		return nil, err
	}
	if p.next().text == "else" {
		if err = p.endBlock(); err == nil {
			l.otherwise, err = p.bodyUntil("endfor")
		}
		return l, err
	}
	return l, p.endBlock()
}

func (p *parser) assignment() (statement, error) {
	targets, err := p.targets()
	if err != nil {
		return nil, err
	}
	a := assignment{targets: targets}
	if len(targets) == 1 && p.accept(operator, ".") {
		if a.attribute, err = p.expectName(); err != nil {
			return nil, err
		}
	}
	if p.accept(operator, "=") {
		if a.value, err = p.tuple(true); err != nil {
			return nil, err
		}
		return a, p.endBlock()
	}
	if len(targets) > 1 || a.attribute != "" {
		return nil, fmt.Errorf("a block is set to one name only")
	}
	c := capture{target: targets[0]}
	for p.accept(operator, "|") {
		f, err := p.filter(nil)
		if err != nil {
			return nil, err
		}
		c.filters = append(c.filters, f)
	}
	if err := p.endBlock(); err != nil {
		return nil, err
	}
	c.body, err = p.bodyUntil("endset")
	return c, err
}

func (p *parser) macro() (statement, error) {
	m := new(macro)
	var err error
	if m.name, err = p.expectName(); err != nil {
		return nil, err
	}
	if err = p.expect(operator, "("); err != nil {
		return nil, err
	}
	for !p.accept(operator, ")") {
		if len(m.parameters) > 0 {
			if err = p.expect(operator, ","); err != nil {
				return nil, err
			}
		}
		n, err := p.expectName()
		if err != nil {
			return nil, err
		}
		m.parameters = append(m.parameters, n)
		if p.accept(operator, "=") {
			value, err := p.expression()
			if err != nil {
				return nil, err
			}
			m.defaults = append(m.defaults, value)
		} else if len(m.defaults) > 0 {
			return nil, fmt.Errorf("a parameter without a default follows one with a default")
		}
	}
	if err = p.endBlock(); err != nil {
		return nil, err
	}
	p.macros = append(p.macros, m)
	m.body, err = p.bodyUntil("endmacro")
	p.macros = p.macros[:len(p.macros)-1]
	return m, err
}

// tuple reads an expression, or several with commas between them. A loop's and an if's have no
// conditional expression.
func (p *parser) tuple(conditional bool) (expression, error) {
	read := p.or
	if conditional {
		read = p.expression
	}
	first, err := read()
	if err != nil || !p.is(operator, ",") {
		return first, err
	}
	items := []expression{first}
	for p.accept(operator, ",") {
		if k := p.peek(); k.kind == variableEnd || k.kind == blockEnd || p.is(operator, ")") {
			break
		}
		item, err := read()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return tupleOf{items}, nil
}

// expression reads a conditional expression, or what binds stronger.
func (p *parser) expression() (expression, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("expressions are nested too deep")
	}
	defer func() { p.depth-- }()
	value, err := p.or()
	for err == nil && p.accept(name, "if") {
		c := conditional{then: value}
		if c.condition, err = p.or(); err != nil {
			return nil, err
		}
		if p.accept(name, "else") {
			if c.otherwise, err = p.expression(); err != nil {
				return nil, err
			}
		}
		value = c
	}
	return value, err
}

func (p *parser) or() (expression, error) { return p.chain(name, []string{"or"}, p.and) }

func (p *parser) and() (expression, error) { return p.chain(name, []string{"and"}, p.not) }

// chain reads operators of one precedence, from left to right.
func (p *parser) chain(k kind, operators []string, operand func() (expression, error)) (expression, error) {
	left, err := operand()
	for err == nil && p.peek().kind == k && slices.Contains(operators, p.peek().text) {
		o := operated{operator: p.next().text, left: left}
		if o.right, err = operand(); err == nil {
			left = o
		}
	}
	return left, err
}

func (p *parser) not() (expression, error) {
	if !p.accept(name, "not") {
		return p.comparison()
	}
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("expressions are nested too deep")
	}
	defer func() { p.depth-- }()
	of, err := p.not()
	return negated{of}, err
}

var comparisons = []string{"==", "!=", "<", "<=", ">", ">="}

func (p *parser) comparison() (expression, error) {
	first, err := p.sum()
	c := compared{first: first}
	for err == nil {
		var op string
		switch t := p.peek(); {
		case t.kind == operator && slices.Contains(comparisons, t.text):
			op = p.next().text
		case p.accept(name, "in"):
			op = "in"
		case p.is(name, "not") && p.tokens[p.at+1].kind == name && p.tokens[p.at+1].text == "in":
			p.at += 2
			op = "not in"
		default:
			if len(c.operators) == 0 {
				return first, nil
			}
			return c, nil
		}
		var other expression
		other, err = p.sum()
		c.operators, c.others = append(c.operators, op), append(c.others, other)
	}
	return nil, err
}

func (p *parser) sum() (expression, error) {
	return p.chain(operator, []string{"+", "-"}, p.concatenation)
}

func (p *parser) concatenation() (expression, error) {
	first, err := p.product()
	if err != nil || !p.is(operator, "~") {
		return first, err
	}
	c := concatenated{[]expression{first}}
	for p.accept(operator, "~") {
		part, err := p.product()
		if err != nil {
			return nil, err
		}
		c.parts = append(c.parts, part)
	}
	return c, nil
}

func (p *parser) product() (expression, error) {
	return p.chain(operator, []string{"*", "/", "//", "%"}, func() (expression, error) { return p.unary(true) })
}

// unary reads a sign or a value, and what stands behind it. A filter binds weaker than a sign.
func (p *parser) unary(filters bool) (expression, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("expressions are nested too deep")
	}
	defer func() { p.depth-- }()
	var of expression
	var err error
	if minus := p.accept(operator, "-"); minus || p.accept(operator, "+") {
		of, err = p.unary(false)
		of = signed{minus, of}
	} else {
		of, err = p.primary()
	}
	if err == nil {
		of, err = p.postfix(of)
	}
	for err == nil && filters {
		switch {
		case p.accept(operator, "|"):
			of, err = p.filter(of)
		case p.accept(name, "is"):
			of, err = p.test(of)
		case p.is(operator, "("):
			of, err = p.call(of)
		default:
			return of, nil
		}
	}
	return of, err
}

func (p *parser) primary() (expression, error) {
	t := p.next()
	switch t.kind {
	case name:
		switch t.text {
		case "true", "True":
			return literal{true}, nil
		case "false", "False":
			return literal{false}, nil
		case "none", "None":
			return literal{nil}, nil
		case "varargs", "kwargs", "caller", "self", "super":
			return nil, fmt.Errorf("%s is not known", t.text)
		}
		return nameOf{t.text}, nil
	case stringLiteral:
		value := t.text
		for p.peek().kind == stringLiteral {
			value += p.next().text
		}
		return literal{value}, nil
	case integerLiteral:
		n, err := strconv.ParseInt(t.text, 10, 64)
		return literal{n}, err
	case floatLiteral:
		f, err := strconv.ParseFloat(t.text, 64)
		return literal{f}, err
	case operator:
		switch t.text {
		case "(":
			return p.parenthesis()
		case "[":
			items, err := p.items("]")
			return listOf{items}, err
		case "{":
			return p.dict()
		}
	}
	return nil, fmt.Errorf("%q is not a value", t.text)
}

func (p *parser) parenthesis() (expression, error) {
	if p.accept(operator, ")") {
		return tupleOf{}, nil
	}
	of, err := p.tuple(true)
	if err != nil {
		return nil, err
	}
	return of, p.expect(operator, ")")
}

// items reads expressions up to a bracket.
func (p *parser) items(end string) (items []expression, err error) {
	for !p.accept(operator, end) {
		if len(items) > 0 {
			if err := p.expect(operator, ","); err != nil {
				return nil, err
			}
			if p.accept(operator, end) {
				break
			}
		}
		item, err := p.expression()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (p *parser) dict() (expression, error) {
	var d dictOf
	for !p.accept(operator, "}") {
		if len(d.keys) > 0 {
			if err := p.expect(operator, ","); err != nil {
				return nil, err
			}
			if p.accept(operator, "}") {
				break
			}
		}
		key, err := p.expression()
		if err == nil {
			err = p.expect(operator, ":")
		}
		if err != nil {
			return nil, err
		}
		value, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, key), append(d.values, value)
	}
	return d, nil
}

// postfix reads attributes, items and calls.
func (p *parser) postfix(of expression) (expression, error) {
	var err error
	for err == nil {
		switch {
		case p.accept(operator, "."):
			switch t := p.next(); t.kind {
			case name:
				of = attributeOf{of, t.text}
			case integerLiteral:
				n, _ := strconv.ParseInt(t.text, 10, 64)
				of = itemOf{of, literal{n}}
			default:
				return nil, fmt.Errorf("the name of an attribute is missing")
			}
		case p.accept(operator, "["):
			of, err = p.subscript(of)
		case p.is(operator, "("):
			of, err = p.call(of)
		default:
			return of, nil
		}
	}
	return nil, err
}

func (p *parser) subscript(of expression) (expression, error) {
	var parts [3]expression
	colons := 0
	for !p.accept(operator, "]") {
		if p.accept(operator, ":") {
			if colons++; colons > 2 {
				return nil, fmt.Errorf("a slice has too many parts")
			}
			continue
		}
		if parts[colons] != nil {
			return nil, fmt.Errorf("%q is out of place in a subscript", p.peek().text)
		}
		part, err := p.expression()
		if err != nil {
			return nil, err
		}
		parts[colons] = part
	}
	switch {
	case colons > 0:
		return sliceOf{of, parts[0], parts[1], parts[2]}, nil
	case parts[0] == nil:
		return nil, fmt.Errorf("a subscript is empty")
	}
	return itemOf{of, parts[0]}, nil
}

func (p *parser) call(of expression) (expression, error) {
	with, err := p.arguments()
	c := called{of, with}
	p.loops.calls = append(p.loops.calls, c)
	return c, err
}

// arguments reads those of a call, from its parenthesis on.
func (p *parser) arguments() (with callArguments, err error) {
	if err = p.expect(operator, "("); err != nil {
		return with, err
	}
	for first := true; !p.accept(operator, ")"); first = false {
		if !first {
			if err = p.expect(operator, ","); err != nil {
				return with, err
			}
			if p.accept(operator, ")") {
				break
			}
		}
		isNamed := p.peek().kind == name && p.tokens[p.at+1].kind == operator && p.tokens[p.at+1].text == "="
		if isNamed {
			with.names = append(with.names, p.next().text)
			p.at++
		}
		value, err := p.expression()
		switch {
		case err != nil:
			return with, err
		case isNamed:
			with.named = append(with.named, value)
		case len(with.named) > 0:
			return with, fmt.Errorf("an argument without a name follows one with a name")
		default:
			with.positional = append(with.positional, value)
		}
	}
	return with, nil
}

func (p *parser) filter(of expression) (filtered, error) {
	f := filtered{of: of}
	var err error
	if f.name, err = p.expectName(); err != nil {
		return f, err
	}
	if p.is(operator, "(") {
		f.with, err = p.arguments()
	}
	return f, err
}

func (p *parser) test(of expression) (expression, error) {
	not := p.accept(name, "not")
	t := tested{of: of}
	var err error
	if t.name, err = p.expectName(); err != nil {
		return nil, err
	}
	switch next := p.peek(); {
	case p.is(operator, "("):
		t.with, err = p.arguments()
	case next.kind == name && !slices.Contains([]string{"else", "or", "and", "is"}, next.text),
		next.kind == stringLiteral, next.kind == integerLiteral, next.kind == floatLiteral, p.is(operator, "["), p.is(operator, "{"):
		var argument expression
		if argument, err = p.primary(); err == nil {
			argument, err = p.postfix(argument)
		}
		t.with.positional = []expression{argument}
	}
	if not {
		return negated{t}, err
	}
	return t, err
}
