// Package decision remembers why the last requests went where they did: what each attempt chose
// from, what the choice predicted, and what was measured afterwards. pd writes it; the admin port's
// /debug/decisions, and so "tandem explain", read it.
package decision
