package serving

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/tandem-gateway/tandem/cmd/internal/nearest"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/discovery"
)

// serverList is the servers of one role. As a flag it is URLs separated by
// commas; in the file a list of URLs, or of objects with labels.
type serverList struct {
	role  pools.Role
	specs []pools.Spec
	set   bool // a first Set replaces the file's value, further ones add
}

func (l *serverList) Type() string { return "URLs" }

func (l *serverList) String() string {
	urls := make([]string, len(l.specs))
	for i, s := range l.specs {
		urls[i] = s.URL
	}
	return strings.Join(urls, ",")
}

func (l *serverList) Set(urls string) error {
	if !l.set {
		l.set, l.specs = true, nil
	}
	for url := range strings.SplitSeq(urls, ",") {
		if url = strings.TrimSpace(url); url != "" {
			l.add(serverEntry{URL: url})
		}
	}
	return nil
}

func (l *serverList) add(e serverEntry) { l.specs = append(l.specs, e.Spec(l.role)) }

// serverEntry is a server in the file, or a name for any number of them.
type serverEntry = discovery.Entry

// read takes the list from a node of the file. lines are those of the servers that were
// read before, by ID.
func (l *serverList) read(node ast.Node, lines map[string]int) error {
	list, isList := node.(*ast.SequenceNode)
	if !isList {
		var urls string
		if err := yaml.NodeToValue(node, &urls, yaml.Strict()); err != nil {
			return yamlError(err)
		}
		if err := l.Set(urls); err != nil {
			return err
		}
		for _, spec := range l.specs {
			if err := atLine(node.GetToken().Position.Line, checkServer(spec, node, lines)); err != nil {
				return err
			}
		}
		return nil
	}
	l.specs = nil
	for _, item := range list.Values {
		var e serverEntry
		if item.Type() == ast.StringType {
			e.URL = item.(*ast.StringNode).Value
		} else if err := readEntry(item, &e); err != nil {
			return err
		}
		l.add(e)
		if err := atLine(item.GetToken().Position.Line, checkServer(l.specs[len(l.specs)-1], item, lines)); err != nil {
			return err
		}
	}
	return nil
}

// checkServer keeps the line of a server, and reports what is wrong with it.
func checkServer(spec pools.Spec, node ast.Node, lines map[string]int) error {
	if discovery.IsName(spec) {
		return discovery.ValidateName(spec)
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	if before, twice := lines[spec.ID()]; twice {
		return fmt.Errorf("server %s is named in line %d already; one that does both is named under both", spec.ID(), before)
	}
	lines[spec.ID()] = node.GetToken().Position.Line
	return nil
}

// readEntry reads one server with its labels.
func readEntry(node ast.Node, e *serverEntry) error {
	if labels, ok := node.(ast.MapNode); ok {
		known, seen := entryLabels(), make(map[string]bool)
		for entries := labels.MapRange(); entries.Next(); {
			name, line := entries.Key().String(), entries.Key().GetToken().Position.Line
			if !slices.Contains(known, name) {
				return atLine(line, fmt.Errorf("unknown label %q of a server%s", name, nearest.Hint(name, known)))
			}
			if seen[name] {
				return atLine(line, fmt.Errorf("label %s is given twice", name))
			}
			seen[name] = true
		}
	}
	if err := yaml.NodeToValue(node, e, yaml.Strict()); err != nil {
		return yamlError(err)
	}
	return nil
}

// entryLabels are the names that a server's labels have in the file.
func entryLabels() (names []string) {
	entry := reflect.TypeFor[serverEntry]()
	for i := range entry.NumField() {
		if name := entry.Field(i).Tag.Get("yaml"); name != "-" {
			names = append(names, name)
		}
	}
	return names
}
