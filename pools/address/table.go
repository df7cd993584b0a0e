package address

import (
	"maps"
	"net/netip"
	"slices"
)

// Ownership is what is known of a host that a server's hand-off names; the worst is last.
type Ownership uint8

const (
	Own     Ownership = iota // the server's
	Unknown                  // not looked up yet, not resolved, or not with all of its addresses the server's
	Foreign                  // certainly not the server's
)

// table is what was found for the names of one server and of its hand-offs. It is immutable.
type table struct {
	own map[string][]netip.Addr // by the server's host and that of its kv-address; empty: not resolved yet
	// literal: the hosts are addresses, and what is known of them cannot become old.
	literal bool
	asked   map[string][]netip.Addr // by host of a hand-off, looked up after it was named; empty: not resolved
}

// judge returns the ownership of a host by its addresses. What is not the server's is foreign
// only if it was looked up, and all of the server's hosts are resolved.
func (t *table) judge(named []netip.Addr, looked bool) Ownership {
	switch {
	case len(named) == 0:
		return Unknown
	case !slices.ContainsFunc(named, func(ip netip.Addr) bool { return !t.has(ip) }):
		return Own
	case looked && t.complete() && !slices.ContainsFunc(named, t.has):
		return Foreign
	}
	return Unknown
}

// judgeLoopback returns the ownership of a loopback address to a reader, of which theirs is known.
func (t *table) judgeLoopback(theirs *table) Ownership {
	switch {
	case t.has(loopback) || slices.ContainsFunc(theirs.all(), t.has):
		return Own
	case t.complete() && theirs.complete():
		return Foreign
	}
	return Unknown
}

// complete reports whether all of the server's hosts are resolved.
func (t *table) complete() bool {
	for _, found := range t.own {
		if len(found) == 0 {
			return false
		}
	}
	return len(t.own) > 0
}

func (t *table) has(ip netip.Addr) bool {
	for _, own := range t.own {
		if slices.Contains(own, ip) {
			return true
		}
	}
	return false
}

func (t *table) all() []netip.Addr {
	return slices.Concat(slices.Collect(maps.Values(t.own))...)
}
