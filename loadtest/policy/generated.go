package policy

import (
	"bytes"
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// generated holds what the traces are generated from that come with the program.
//
//go:embed generated/*.yaml
var generated embed.FS

// GeneratedTraces returns the names of the traces that are generated: each run has its own, from
// its seed.
func GeneratedTraces() []string { return namesIn(generated, "generated") }

// namesIn returns the names of the YAML files in a folder.
func namesIn(files embed.FS, folder string) []string {
	entries, err := files.ReadDir(folder)
	if err != nil {
		panic(err) // embedded: it is there
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

// generatedWorkload reads one of GeneratedTraces.
func generatedWorkload(name string) (*Workload, error) {
	text, err := generated.ReadFile(path.Join("generated", name+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	w := new(Workload)
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(w); err != nil {
		return nil, fmt.Errorf("trace %s: %w", name, err)
	}
	return w, w.check()
}

// openTrace is the load of a trace: one of GeneratedTraces, or else a file.
func openTrace(name string, limit int) (*load, error) {
	if slices.Contains(GeneratedTraces(), name) {
		w, err := generatedWorkload(name)
		return &load{name: name, workload: w, limit: limit}, err
	}
	t, err := ReadTraceFile(name, limit)
	return &load{fixed: t}, err
}

// on is a scenario on one of several traces, which is part of its name.
func (s *Scenario) on(trace string) *Scenario {
	other := *s
	name := strings.TrimSuffix(path.Base(trace), path.Ext(trace))
	other.Name, other.Title = name+"/"+s.Name, s.Title+"; trace "+name
	return &other
}
