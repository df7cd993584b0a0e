// Package share says which part of the requests of like lengths goes to which kind of
// hardware: what the planner finds (autoscale/mix), and the choice of servers reads (pd).
package share

import "slices"

// Table is the part of each class that each kind of hardware is to prefill, 0..1. It is
// immutable once it is made; a nil one says nothing.
type Table struct {
	Variants []string `json:"variants"`
	// Prefill is by class, then by variant. A row sums up to 1; a class without one goes
	// anywhere.
	Prefill map[Class][]float64 `json:"prefill,omitempty"`
	// Tokens is the part of all tokens to compute that each variant so gets.
	Tokens []float64 `json:"tokens,omitempty"`
}

// Column is where a variant stands in each row, -1 if nothing is known of it.
func (t *Table) Column(variant string) int {
	if t == nil {
		return -1
	}
	return slices.Index(t.Variants, variant)
}
