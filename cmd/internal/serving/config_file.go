package serving

import (
	"errors"
	"fmt"
	"os"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/cmd/internal/nearest"
)

// loadConfig reads the file, if there is one, and puts the flags that were given
// over it. Names in the file are names of flags. What is wrong with the file names it, the
// line and the value.
func loadConfig(file string, given *pflag.FlagSet) (config, error) {
	cfg := defaultConfig()
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.bind(known)
	lines := make(fileLines)
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return config{}, fmt.Errorf("read the configuration: %w", err)
		}
		if lines, err = readFile(content, &cfg, known); err != nil {
			return config{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	var failed error
	given.Visit(func(f *pflag.Flag) {
		into := known.Lookup(f.Name)
		if into == nil || failed != nil {
			return
		}
		delete(lines, f.Name)
		// A list's String is not what its Set reads.
		if list, ok := f.Value.(pflag.SliceValue); ok {
			failed = into.Value.(pflag.SliceValue).Replace(list.GetSlice())
			return
		}
		failed = known.Set(f.Name, f.Value.String())
	})
	if failed != nil {
		return config{}, failed
	}
	if err := cfg.validate(); err != nil {
		return config{}, lines.place(file, err)
	}
	if cfg.pd.hold.MaxWait == 0 && cfg.scaling.Planner.ToZero() {
		cfg.pd.hold.MaxWait = 3 * cfg.scaling.ColdStart
	}
	return cfg, cfg.readCapacity()
}

// readCapacity uses what was measured of a server.
func (c *config) readCapacity() error {
	if c.scaling.capacity == "" {
		return nil
	}
	measured, err := sizing.ReadCapacity(c.scaling.capacity)
	if err != nil {
		return err
	}
	c.pools.Prefill, c.pools.Step, c.pools.Measured, c.scaling.Prior = measured.Prefill, measured.Step, true, *measured
	return nil
}

// readFile reads settings from a file's text, and returns where they were. Errors name
// the line.
func readFile(content []byte, cfg *config, known *pflag.FlagSet) (fileLines, error) {
	file, err := parser.ParseBytes(content, 0, parser.AllowDuplicateMapKey()) // duplicates are reported below
	if err != nil {
		return nil, yamlError(err)
	}
	lines, servers := make(fileLines), make(map[string]int)
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		mapping, ok := doc.Body.(ast.MapNode)
		if !ok {
			return nil, atLine(doc.Body.GetToken().Position.Line, errors.New("want settings, one \"name: value\" a line"))
		}
		for entries := mapping.MapRange(); entries.Next(); {
			name := entries.Key().String()
			at := fileLine{line: entries.Key().GetToken().Position.Line}
			if before, twice := lines[name]; twice {
				return nil, atLine(at.line, fmt.Errorf("%s is set in line %d already", name, before.line))
			}
			if scalar, ok := entries.Value().(ast.ScalarNode); ok {
				at.value = fmt.Sprint(scalar.GetValue())
			}
			lines[name] = at
			if err := readSetting(name, entries.Value(), cfg, known, servers); err != nil {
				return nil, atLine(at.line, err)
			}
		}
	}
	return lines, nil
}

// readSetting reads one setting. servers are the lines of those that were read, by ID.
func readSetting(name string, value ast.Node, cfg *config, known *pflag.FlagSet, servers map[string]int) error {
	for i, role := range []string{"prefill", "decode", "both"} {
		if name != role {
			continue
		}
		if err := cfg.servers[i].read(value, servers); err != nil {
			return err
		}
		// Flags replace what the file says.
		cfg.servers[i].set = false
		return nil
	}
	f := known.Lookup(name)
	if f == nil {
		var names []string
		known.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return fmt.Errorf("unknown setting %q%s; \"tandem serve --help-all\" names them all", name, nearest.Hint(name, names))
	}
	if value.Type() == ast.NullType {
		return fmt.Errorf("%s: has no value; leave the line out for the default", name)
	}
	if list, ok := f.Value.(pflag.SliceValue); ok && value.Type() == ast.SequenceType {
		var items []string
		if err := yaml.NodeToValue(value, &items, yaml.Strict()); err != nil {
			return yamlError(err)
		}
		return list.Replace(items)
	}
	scalar, ok := value.(ast.ScalarNode)
	if !ok {
		return fmt.Errorf("%s: want a single value", name)
	}
	text := fmt.Sprint(scalar.GetValue())
	if f.Value.Set(text) != nil {
		return fmt.Errorf("%s: %q is not %s", name, text, wanted(f.Value.Type()))
	}
	return nil
}

// restartNeeded names the settings that differ and that a reload does not take
// over: all but the servers.
func restartNeeded(old, next config) []string {
	a, b := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	old.bind(a)
	next.bind(b)
	var names []string
	a.VisitAll(func(f *pflag.Flag) {
		_, isServers := f.Value.(*serverList)
		if !isServers && f.Value.String() != b.Lookup(f.Name).Value.String() {
			names = append(names, f.Name)
		}
	})
	return names
}
