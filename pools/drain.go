package pools

import "sync/atomic"

// drains are the reasons for which a server takes no new request, beside its spec.
type drains struct {
	byOperator atomic.Bool
	byScaling  atomic.Bool // scaling in takes it next
}

// Drains reports whether the server takes no new request: its source says so (file,
// label), or an operator does, or scaling in takes it next.
func (s *Server) Drains() bool {
	return s.Drain || s.drains.byOperator.Load() || s.drains.byScaling.Load()
}

// SetLeaving lets the servers of some units drain, because scaling in takes them next,
// and all others take requests again that drained for that.
func (f *Fleet) SetLeaving(units map[string]bool) {
	for _, s := range f.Servers() {
		s.drains.byScaling.Store(units[s.UnitName()])
	}
}

// SetDrain lets a server drain, or take requests again, until it is said otherwise
// or this gateway ends; it outlives reloads. Servers of one group drain together.
// What its source says stands beside it. false: there is no such server.
func (f *Fleet) SetDrain(id string, drain bool) bool {
	f.mu.Lock() // a group that is just being joined has it of all its members or of none
	defer f.mu.Unlock()
	for _, s := range f.Servers() {
		if s.id != id {
			continue
		}
		s.drains.byOperator.Store(drain)
		if g := s.group.Load(); g != nil {
			for _, m := range g.members {
				m.drains.byOperator.Store(drain)
			}
		}
		return true
	}
	return false
}
