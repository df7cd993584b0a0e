package main

import (
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/tandem-gateway/tandem/pools"
)

// serverList is the servers of one role. As a flag it is URLs separated by
// commas; in the file a list of URLs, or of objects with labels.
type serverList struct {
	role  pools.Role
	specs []pools.Spec
	set   bool // a first Set replaces what the file said, further ones add
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
type serverEntry = pools.Entry

// read takes the list from a node of the file.
func (l *serverList) read(node ast.Node) error {
	list, isList := node.(*ast.SequenceNode)
	if !isList {
		var urls string
		if err := yaml.NodeToValue(node, &urls, yaml.Strict()); err != nil {
			return err
		}
		return l.Set(urls)
	}
	l.specs = nil
	for _, item := range list.Values {
		var e serverEntry
		if item.Type() == ast.StringType {
			e.URL = item.(*ast.StringNode).Value
		} else if err := yaml.NodeToValue(item, &e, yaml.Strict()); err != nil {
			return err
		}
		l.add(e)
	}
	return nil
}
