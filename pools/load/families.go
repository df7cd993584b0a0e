package load

import (
	"bytes"
	"strings"
)

// familySet is a set of families of metrics, by each of their names: Ray has no colons in names.
type familySet map[string]bool

func newFamilySet(names []string) familySet {
	set := make(familySet, 2*len(names))
	for _, name := range names {
		set[name] = true
		set[strings.ReplaceAll(name, ":", "_")] = true
	}
	return set
}

// appendLines appends the lines of a Prometheus text that belong to the families: some
// ten of the thousand that an engine with its histograms exposes, so that the parser,
// which makes objects of all that it reads, reads them alone. What looks like no line of
// another family, such as a line that was cut off or a page of HTML, stays for the parser to
// judge.
func (s familySet) appendLines(dst, text []byte) []byte {
	var name []byte // that the line before began with
	keep := false
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n') + 1
		if end == 0 {
			end = len(text)
		}
		line := text[:end]
		text = text[end:]
		if !isSample(line, name) { // else it is of the same family
			var ok bool
			name, ok = familyOf(line)
			keep = !ok || s[string(name)]
		}
		if keep {
			dst = append(dst, line...)
		}
	}
	return dst
}

// isSample reports whether a line is a sample of a name.
func isSample(line, name []byte) bool {
	if len(name) == 0 || len(line) <= len(name) || line[len(line)-1] != '\n' || !bytes.Equal(line[:len(name)], name) {
		return false
	}
	rest := line[len(name):]
	return rest[0] == ' ' || rest[0] == '{' && bytes.IndexByte(rest, ' ') > 0
}

// familyOf is the name that a line begins with, or that its comment is about: "" of empty
// lines and of other comments. ok is false if the line is none of these.
func familyOf(line []byte) (name []byte, ok bool) {
	if line[len(line)-1] != '\n' {
		return nil, false // cut off
	}
	if comment, ok := bytes.CutPrefix(line, []byte("# ")); ok {
		kind, rest, _ := bytes.Cut(comment, []byte(" "))
		if string(kind) != "HELP" && string(kind) != "TYPE" {
			return nil, false
		}
		line = rest
	}
	end := 0
	for end < len(line) && inName(line[end]) {
		end++
	}
	if end == 0 {
		return nil, len(line) == 1
	}
	if bytes.IndexByte(line[end:], ' ') < 0 || line[end] != ' ' && line[end] != '{' {
		return nil, false // no value
	}
	return line[:end], true
}

func inName(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == ':'
}
