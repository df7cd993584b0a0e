// Package permodel reads settings that have one value for all models and others for some,
// such as --ttft-slo 2s --ttft-slo llama=500ms. It imports the standard library only.
package permodel

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Setting is a value for all models, and for those that have their own.
type Setting[T any] struct {
	All    T
	Models map[string]T
}

// Of is the setting of a model: its own, else that of base, the model that it adapts, else
// that of all.
func (p *Setting[T]) Of(model, base string) T {
	if len(p.Models) == 0 { // as mostly
		return p.All
	}
	for _, name := range []string{model, base} {
		if own, set := p.Models[name]; set {
			return own
		}
	}
	return p.All
}

// Parse reads the entries of a named setting, "value" and "model=value", each model
// at most once; all is the value where no entry sets one for all models.
func Parse[T any](name string, entries []string, all T, read func(string) (T, error)) (Setting[T], error) {
	p, allSet := Setting[T]{All: all, Models: make(map[string]T)}, false
	for _, entry := range entries {
		at := strings.LastIndex(entry, "=") // a value has none, a model's name may
		value, err := read(entry[at+1:])
		if err != nil {
			return Setting[T]{}, fmt.Errorf("%s %q: %w", name, entry, err)
		}
		if at < 0 {
			if allSet {
				return Setting[T]{}, fmt.Errorf("%s %q: it is set for all models already", name, entry)
			}
			p.All, allSet = value, true
			continue
		}
		model := entry[:at]
		if _, twice := p.Models[model]; twice || model == "" {
			return Setting[T]{}, fmt.Errorf("%s %q: want a model's name before the =, each model once", name, entry)
		}
		p.Models[model] = value
	}
	return p, nil
}

// ParseDurations reads the entries of a setting that is a duration, none below 0: a duration for
// all, or model=duration. Where no entry sets one for all models it is 0.
func ParseDurations(name string, entries []string) (Setting[time.Duration], error) {
	return Parse(name, entries, 0, func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return 0, errors.New("want a duration such as 2s, or model=2s")
		}
		return d, nil
	})
}
