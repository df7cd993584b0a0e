package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/autoscale"
)

// loadConfig reads the file, if there is one, and puts the flags that were given
// over it. Names in the file are names of flags; an unknown one is an error that
// names its line.
func loadConfig(file string, given *pflag.FlagSet) (config, error) {
	cfg := defaultConfig()
	known := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.bind(known)
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return config{}, fmt.Errorf("read the configuration: %w", err)
		}
		if err := readFile(content, &cfg, known); err != nil {
			return config{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	var failed error
	given.Visit(func(f *pflag.Flag) {
		into := known.Lookup(f.Name)
		if into == nil || failed != nil {
			return
		}
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
		return config{}, err
	}
	if cfg.hold.For == 0 && cfg.scaling.Planner.ToZero() {
		cfg.hold.For = 3 * cfg.scaling.ColdStart
	}
	return cfg, cfg.believe()
}

// believe takes over what was measured of a server.
func (c *config) believe() error {
	if c.capacity == "" {
		return nil
	}
	measured, err := autoscale.ReadCapacity(c.capacity)
	if err != nil {
		return err
	}
	c.pools.Prefill, c.pools.Step, c.scaling.Prior = measured.Prefill, measured.Step, *measured
	return nil
}

func readFile(content []byte, cfg *config, known *pflag.FlagSet) error {
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		return errors.New(yaml.FormatError(err, false, true))
	}
	seen := make(map[string]bool)
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		mapping, ok := doc.Body.(ast.MapNode)
		if !ok {
			return fmt.Errorf("line %d: want settings, one \"name: value\" a line", doc.Body.GetToken().Position.Line)
		}
		for entries := mapping.MapRange(); entries.Next(); {
			name := entries.Key().String()
			line := entries.Key().GetToken().Position.Line
			if seen[name] {
				return fmt.Errorf("line %d: %s is set twice", line, name)
			}
			seen[name] = true
			if err := readSetting(name, entries.Value(), cfg, known); err != nil {
				return fmt.Errorf("line %d: %w", line, err)
			}
		}
	}
	return nil
}

func readSetting(name string, value ast.Node, cfg *config, known *pflag.FlagSet) error {
	for i, role := range []string{"prefill", "decode", "both"} {
		if name != role {
			continue
		}
		if err := cfg.servers[i].read(value); err != nil {
			return errors.New(yaml.FormatError(err, false, true))
		}
		// Flags replace what the file says.
		cfg.servers[i].set = false
		return nil
	}
	if known.Lookup(name) == nil {
		return fmt.Errorf("unknown setting %q; \"tandem serve --help\" names them all", name)
	}
	if list, ok := known.Lookup(name).Value.(pflag.SliceValue); ok && value.Type() == ast.SequenceType {
		var items []string
		if err := yaml.NodeToValue(value, &items, yaml.Strict()); err != nil {
			return errors.New(yaml.FormatError(err, false, true))
		}
		return list.Replace(items)
	}
	scalar, ok := value.(ast.ScalarNode)
	if !ok {
		return fmt.Errorf("%s: want a single value", name)
	}
	return known.Set(name, fmt.Sprint(scalar.GetValue()))
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
