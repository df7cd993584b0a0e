package tokens

import "slices"

// echo finds which messages of a prompt begin like later ones: the last such one for
// all messages up to each. With a template that does not keep the order of messages, a
// later message may then have made the tokens that seem to come from an earlier one.
type echo []int

func newEcho(turns []turn) echo {
	last := make(map[uint32]int, len(turns))
	for i, t := range turns {
		last[t.head] = i
	}
	e, furthest := make(echo, len(turns)), 0
	for i, t := range turns {
		furthest = max(furthest, last[t.head])
		e[i] = furthest
	}
	return e
}

// from reports whether a message after a place begins like one up to it.
func (e echo) from(at place) bool { return e[at.turn] > at.turn }

// meet reports whether a message of one list begins like one of the other.
func meet(a, b []turn) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	heads := make(map[uint32]struct{}, len(a))
	for _, t := range a {
		heads[t.head] = struct{}{}
	}
	return slices.ContainsFunc(b, func(t turn) bool { _, both := heads[t.head]; return both })
}

// fields reports whether a place is within a message of several fields: the template
// may write another one, which both prompts share, before the one that differs.
func (k *known) fields(at place) bool {
	if kind := k.turns[at.turn].kind; k.open || kind != call && kind != other {
		return false
	}
	end := int32(len(k.prints))
	if at.turn+1 < len(k.turns) {
		end = k.turns[at.turn+1].first
	}
	return at.cell < end
}
