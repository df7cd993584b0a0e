package load

import (
	"bytes"
	"strings"
)

// selectFamilies returns the lines of a Prometheus text that belong to the named families:
// some ten of the thousand that an engine with its histograms exposes, so that the parser,
// which makes objects of all that it reads, reads them alone. What looks like no line of
// another family, such as a line that was cut off or a page of HTML, stays for the parser to
// judge.
func selectFamilies(text []byte, names []string) []byte {
	wanted := make(map[string]bool, 2*len(names))
	for _, name := range names {
		wanted[name] = true
		wanted[strings.ReplaceAll(name, ":", "_")] = true
	}
	selected := make([]byte, 0, 2048)
	for line := range bytes.Lines(text) {
		if name, ok := familyOf(line); !ok || wanted[string(name)] {
			selected = append(selected, line...)
		}
	}
	return selected
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
