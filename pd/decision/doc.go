// Package decision remembers why requests went where they did, for a time and in bounded memory: what
// each attempt chose from, what the choice predicted, and what was measured afterwards. pd writes it;
// the admin port's /debug/decisions, and so "tandem explain", read it.
package decision
