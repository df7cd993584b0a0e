package pools

import (
	"fmt"
	"strings"
)

// PerModel is a setting for all models, and for those that have their own.
type PerModel[T any] struct {
	All    T
	Models map[string]T
}

// Of is the setting of a model: its own, else that of base, the model that it adapts, else
// that of all.
func (p *PerModel[T]) Of(model, base string) T {
	for _, name := range []string{model, base} {
		if own, set := p.Models[name]; set {
			return own
		}
	}
	return p.All
}

// ParsePerModel reads the entries of a named setting, "value" and "model=value", each model
// at most once; all is the setting of all where no entry says it.
func ParsePerModel[T any](name string, entries []string, all T, read func(string) (T, error)) (PerModel[T], error) {
	p, allSet := PerModel[T]{All: all, Models: make(map[string]T)}, false
	for _, entry := range entries {
		at := strings.LastIndex(entry, "=") // a value has none, a model's name may
		value, err := read(entry[at+1:])
		if err != nil {
			return PerModel[T]{}, fmt.Errorf("%s %q: %w", name, entry, err)
		}
		if at < 0 {
			if allSet {
				return PerModel[T]{}, fmt.Errorf("%s %q: it is set for all models already", name, entry)
			}
			p.All, allSet = value, true
			continue
		}
		model := entry[:at]
		if _, twice := p.Models[model]; twice || model == "" {
			return PerModel[T]{}, fmt.Errorf("%s %q: want a model's name before the =, each model once", name, entry)
		}
		p.Models[model] = value
	}
	return p, nil
}
