package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// kind is the kind of a token.
type kind uint8

const (
	endOfTemplate kind = iota
	data               // text outside of blocks
	blockBegin
	blockEnd
	variableBegin
	variableEnd
	name
	operator
	stringLiteral
	integerLiteral
	floatLiteral
)

// token is a part of a template's source.
type token struct {
	kind kind
	text string // of a string literal its value
	line int
}

// lexer cuts a source into tokens, with trim_blocks and lstrip_blocks.
type lexer struct {
	source string
	at     int
	line   int
	tokens []token
	// lineStart says that the text after the last end mark begins a line.
	lineStart bool
}

// tokenize returns the tokens of a source, whose newlines count as \n and whose last one does not
// count at all.
func tokenize(source string) ([]token, error) {
	if !utf8.ValidString(source) {
		return nil, fmt.Errorf("the template is not UTF-8")
	}
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	l := &lexer{source: strings.TrimSuffix(source, "\n"), line: 1, lineStart: true}
	for l.at < len(l.source) {
		if err := l.step(); err != nil {
			return nil, fmt.Errorf("line %d: %w", l.line, err)
		}
	}
	return append(l.tokens, token{kind: endOfTemplate, line: l.line}), nil
}

func (l *lexer) add(k kind, text string) {
	l.tokens = append(l.tokens, token{k, text, l.line})
}

// skip goes on by n bytes.
func (l *lexer) skip(n int) {
	l.line += strings.Count(l.source[l.at:l.at+n], "\n")
	l.at += n
}

func (l *lexer) rest() string { return l.source[l.at:] }

// step reads text up to the next mark, and what the mark begins.
func (l *lexer) step() error {
	text := l.rest()
	begin := -1
	for i := 0; i+1 < len(text); i++ {
		if text[i] == '{' && strings.IndexByte("{%#", text[i+1]) >= 0 {
			begin = i
			break
		}
	}
	if begin < 0 {
		l.add(data, text)
		l.skip(len(text))
		return nil
	}
	mark, sign := text[begin+1], byte(0)
	if begin+2 < len(text) && (text[begin+2] == '-' || text[begin+2] == '+') {
		sign = text[begin+2]
	}
	if before := l.before(text[:begin], mark, sign); before != "" {
		l.add(data, before)
	}
	l.skip(begin + 2)
	if sign != 0 {
		l.skip(1)
	}
	switch mark {
	case '#':
		return l.comment()
	case '%':
		l.add(blockBegin, "")
		return l.inside("%}", blockEnd)
	}
	l.add(variableBegin, "")
	return l.inside("}}", variableEnd)
}

// before is the text before a mark, without what its sign or lstrip_blocks takes away.
func (l *lexer) before(text string, mark, sign byte) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || mark == '{':
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.lineStart) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

// end takes an end mark, with the white space that belongs to it: all after a minus, and one
// newline after a block or comment.
func (l *lexer) end(mark string, sign bool) {
	n := len(mark)
	if sign {
		n++
	}
	after := l.source[l.at+n:]
	switch {
	case sign && l.source[l.at] == '-':
		n += len(after) - len(strings.TrimLeftFunc(after, isSpace))
	case sign || mark == "}}":
	case strings.HasPrefix(after, "\n"):
		n++
	}
	l.lineStart = l.source[l.at+n-1] == '\n'
	l.skip(n)
}

func (l *lexer) comment() error {
	end := strings.Index(l.rest(), "#}")
	if end < 0 {
		return fmt.Errorf("a comment has no end")
	}
	if sign := end > 0 && strings.IndexByte("-+", l.rest()[end-1]) >= 0; sign {
		l.skip(end - 1)
		l.end("#}", true)
		return nil
	}
	l.skip(end)
	l.end("#}", false)
	return nil
}

// inside reads the tokens of a block or variable up to its end.
func (l *lexer) inside(mark string, end kind) error {
	depth := 0 // of brackets: }} may end a mapping
	for {
		rest := l.rest()
		l.skip(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
		rest = l.rest()
		if rest == "" {
			return fmt.Errorf("%s is missing", mark)
		}
		if depth == 0 {
			sign := rest[0] == '-' || rest[0] == '+' && mark == "%}"
			if strings.HasPrefix(rest, mark) || sign && strings.HasPrefix(rest[1:], mark) {
				l.end(mark, !strings.HasPrefix(rest, mark))
				l.add(end, "")
				return nil
			}
		}
		change, err := l.expressionToken(rest)
		if err != nil {
			return err
		}
		if depth += change; depth < 0 {
			return fmt.Errorf("a bracket is closed that was not opened")
		}
	}
}

// operators, the longest first.
var operators = []string{"**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", "(", ")", "[", "]", "{", "}"}

// expressionToken reads one token, and says by how much the depth of brackets changes.
func (l *lexer) expressionToken(rest string) (depth int, err error) {
	first, _ := utf8.DecodeRuneInString(rest)
	switch {
	case first == '"' || first == '\'':
		return 0, l.stringToken(rest)
	case first >= '0' && first <= '9':
		return 0, l.numberToken(rest)
	case first == '_' || unicode.IsLetter(first):
		n := len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }))
		l.add(name, rest[:n])
		l.skip(n)
		return 0, nil
	}
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		l.add(operator, op)
		l.skip(len(op))
		switch op {
		case "(", "[", "{":
			depth = 1
		case ")", "]", "}":
			depth = -1
		}
		return depth, nil
	}
	return 0, fmt.Errorf("%q is not part of an expression", first)
}

// stringToken reads a string with Python's escapes.
func (l *lexer) stringToken(rest string) error {
	quote := rest[0]
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == quote:
			l.add(stringLiteral, b.String())
			l.skip(i + 1)
			return nil
		case c != '\\':
			b.WriteByte(c)
		case i+1 < len(rest):
			n, err := unescape(&b, rest[i+1:])
			if err != nil {
				return err
			}
			i += n
		}
	}
	return fmt.Errorf("a string has no end")
}

// unescape writes what an escape after its backslash stands for, and returns its length.
func unescape(b *strings.Builder, escape string) (int, error) {
	const simple, meant = `\'"abfnrtv`, "\\'\"\a\b\f\n\r\t\v"
	c := escape[0]
	if i := strings.IndexByte(simple, c); i >= 0 {
		b.WriteByte(meant[i])
		return 1, nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	switch {
	case digits > 0 && len(escape) > digits:
		n, err := strconv.ParseUint(escape[1:1+digits], 16, 32)
		if err != nil || !utf8.ValidRune(rune(n)) || n > unicode.MaxRune {
			return 0, fmt.Errorf("\\%s is not a character", escape[:1+digits])
		}
		b.WriteRune(rune(n))
		return 1 + digits, nil
	case c == '\n':
		return 1, nil
	case digits > 0 || c == 'N' || c >= '0' && c <= '7' || c >= utf8.RuneSelf:
		return 0, fmt.Errorf("an escape \\%c is not known", c)
	}
	b.WriteByte('\\') // Python keeps what is no escape
	b.WriteByte(c)
	return 1, nil
}

// numberToken reads an integer or a float.
func (l *lexer) numberToken(rest string) error {
	isDigit := func(r rune) bool { return r >= '0' && r <= '9' }
	n := len(rest) - len(strings.TrimLeftFunc(rest, isDigit))
	k := integerLiteral
	after := rest[n:]
	if len(after) > 1 && after[0] == '.' && isDigit(rune(after[1])) {
		n += 1 + len(after) - 1 - len(strings.TrimLeftFunc(after[1:], isDigit))
		k, after = floatLiteral, rest[n:]
	}
	if after != "" && (after[0] == '_' || unicode.IsLetter(rune(after[0]))) {
		return fmt.Errorf("a number in a form that is not known")
	}
	l.add(k, rest[:n])
	l.skip(n)
	return nil
}
