package mix

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
)

// ParseVariants reads kinds of hardware as ParseVariant does; no two are of one name.
func ParseVariants(texts []string) ([]Variant, error) {
	var variants []Variant
	for _, text := range texts {
		v, err := ParseVariant(text)
		if err != nil {
			return nil, fmt.Errorf("hardware %q: %w", text, err)
		}
		if slices.ContainsFunc(variants, func(other Variant) bool { return other.Name == v.Name }) {
			return nil, fmt.Errorf("hardware %q: there is a variant %s already", text, v.Name)
		}
		variants = append(variants, *v)
	}
	return variants, nil
}

// ParseVariant reads a kind of hardware as NAME=FILE,cost=C,gpus=N,have=N,kind=GPU: the
// file is what was measured of a server.
func ParseVariant(text string) (*Variant, error) {
	parts := strings.Split(text, ",")
	name, file, found := strings.Cut(parts[0], "=")
	if !found {
		return nil, errors.New("want NAME=FILE")
	}
	if name == "" {
		return nil, errors.New("want NAME=FILE: the name is empty")
	}
	measured, err := sizing.ReadCapacity(file)
	if err != nil {
		return nil, err
	}
	v := &Variant{Name: name, Capacity: *measured, Cost: 1, GPUs: 1}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "cost":
			v.Cost, err = strconv.ParseFloat(value, 64)
		case "gpus":
			v.GPUs, err = strconv.Atoi(value)
		case "have":
			v.Have, err = strconv.Atoi(value)
		case "kind":
			v.Kind = value
		default:
			return nil, fmt.Errorf("%q: want cost, gpus, have or kind", part)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
	}
	return v, v.validate()
}

// validate reports what a variant cannot be, nil if it can.
func (v *Variant) validate() error {
	switch {
	case !(v.Cost > 0) || math.IsInf(v.Cost, 0):
		return fmt.Errorf("cost %v: want a positive number", v.Cost)
	case v.GPUs <= 0:
		return fmt.Errorf("gpus %d: want at least 1", v.GPUs)
	case v.Have < 0:
		return fmt.Errorf("have %d: want a number of GPUs, or 0 for any", v.Have)
	}
	return nil
}
