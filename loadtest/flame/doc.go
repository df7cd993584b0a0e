// Package flame draws a CPU profile as a flame graph: an SVG that stands by itself, with the stacks merged
// from their roots, so that what two stacks have in common is one bar as wide as both.
//
// cmd/tandem-lab imports it (profile).
package flame
