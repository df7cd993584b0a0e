package serving

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
)

// lineError is what is wrong with one line of the file.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// atLine says in which line an error is, unless it says so already.
func atLine(line int, err error) error {
	var placed *lineError
	if err == nil || errors.As(err, &placed) {
		return err
	}
	return &lineError{line, err}
}

// yamlError is what the YAML reader found wrong, in one line of text and at its place.
func yamlError(err error) error {
	var fault yaml.Error
	if !errors.As(err, &fault) || fault.GetToken() == nil {
		return err
	}
	at := fault.GetToken()
	var wrong *yaml.TypeError
	if errors.As(err, &wrong) && wrong.DstType != nil {
		return &lineError{at.Position.Line, fmt.Errorf("%s%q is not %s", keyBefore(at), at.Value, wanted(wrong.DstType.Kind().String()))}
	}
	return &lineError{at.Position.Line, errors.New(fault.GetMessage())}
}

// keyBefore is the key of a value, as the beginning of a message; "" of an item of a list.
func keyBefore(value *token.Token) string {
	if colon := value.Prev; colon != nil && colon.Type == token.MappingValueType && colon.Prev != nil {
		return colon.Prev.Value + ": "
	}
	return ""
}

// fileLines are the settings of a file that count: the line of each, and its value.
type fileLines map[string]fileLine

type fileLine struct {
	line  int
	value string // "" of a list
}

// place says in which line of the file the setting is that an error is about, with its
// value. Such errors begin with the setting's name, or hold one that is no common word.
func (l fileLines) place(file string, err error) error {
	if all, several := err.(interface{ Unwrap() []error }); several {
		var placed []error
		for _, each := range all.Unwrap() {
			placed = append(placed, l.place(file, each))
		}
		return errors.Join(placed...)
	}
	for _, name := range settingsIn(err.Error()) {
		at, set := l[name]
		if !set {
			continue
		}
		if at.value == "" || strings.Contains(at.value, "@") || strings.Contains(err.Error(), at.value) {
			return fmt.Errorf("%s: line %d: %w", file, at.line, err)
		}
		return fmt.Errorf("%s: line %d: %s: %s: %w", file, at.line, name, at.value, err)
	}
	return err
}

// settingsIn are the words of a message that may name the setting which it is about.
func settingsIn(message string) (names []string) {
	for i, word := range strings.FieldsFunc(message, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') }) {
		if name := strings.Trim(word, "-"); i == 0 || strings.Contains(name, "-") {
			names = append(names, name)
		}
	}
	return names
}

// wanted is what a flag's type is called in a message.
func wanted(kind string) string {
	return cmp.Or(map[string]string{
		"int": "a whole number", "int64": "a whole number", "float64": "a number", "bool": "true or false", "string": "a text", "duration": "a time with its unit, such as 30s",
	}[kind], kind)
}
