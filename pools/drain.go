package pools

import (
	"slices"
	"sync/atomic"
)

// drains are the reasons for which a server takes no new request, beside its spec.
type drains struct {
	byOperator atomic.Bool
	byScaling  atomic.Bool // scaling in removes it next
}

// Drains reports whether the server takes no new request: its source (file, label),
// an operator, or scaling in drains it.
func (s *Server) Drains() bool {
	return s.Drain || s.drains.byOperator.Load() || s.drains.byScaling.Load()
}

// DrainsByScaling reports whether scaling in drains the server.
func (s *Server) DrainsByScaling() bool { return s.drains.byScaling.Load() }

// SetDrainingUnits drains the servers of some units, because scaling in removes them next,
// and lets all others that drained for that take requests again. Servers of one group drain
// together, also where they are of several units: without the others none gets on.
func (f *Fleet) SetDrainingUnits(units map[string]bool) {
	groups := make(map[*group]bool)
	for _, s := range f.Servers() {
		if g := s.group.Load(); g != nil && units[s.UnitName()] {
			groups[g] = true
		}
	}
	for _, s := range f.Servers() {
		s.drains.byScaling.Store(units[s.UnitName()] || groups[s.group.Load()])
		s.countChange()
	}
	f.updateMissing()
}

// SetDrain lets a server drain, or take requests again, until the next call or this gateway ends; it
// outlives reloads. Servers of one group drain together. It does not change what its source says. It
// returns the IDs of the servers that drain by it, or do so no more: none where there is no such server.
func (f *Fleet) SetDrain(id string, drain bool) (servers []string) {
	f.mu.Lock() // a group that is just being joined has it of all its members or of none
	defer f.mu.Unlock()
	all := f.Servers()
	at := slices.IndexFunc(all, func(s *Server) bool { return s.id == id })
	if at < 0 {
		return nil
	}
	g := all[at].group.Load()
	for _, s := range all {
		if s.id == id || g != nil && s.group.Load() == g {
			s.drains.byOperator.Store(drain)
			s.countChange()
			servers = append(servers, s.id)
		}
	}
	f.updateMissing()
	return servers
}
