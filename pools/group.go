package pools

// group is servers that step in lockstep, as the ranks of wide expert parallelism do:
// none gets on without the others. So they fail together, though the health of those
// that wait for a dead one stays good, and drain together. A server of its own has none.
type group struct {
	number  int // from 1, as the choice names it
	members []*serverState
}

// state is that of the member that is worst off.
func (g *group) state() State {
	state := Alive
	if g == nil {
		return state
	}
	for _, m := range g.members {
		state = min(state, m.ownState())
	}
	return state
}

// joinGroups joins the servers that name one group; where one drains, all do, also one that
// comes to a group which an operator drains.
func joinGroups(servers []*Server) {
	groups := make(map[string]*group)
	drains, byOperator := make(map[string]bool), make(map[string]bool)
	for _, s := range servers {
		if s.Group == "" {
			s.group.Store(nil)
			continue
		}
		g := groups[s.Group]
		if g == nil {
			g = &group{number: len(groups) + 1}
			groups[s.Group] = g
		}
		g.members = append(g.members, s.serverState)
		drains[s.Group] = drains[s.Group] || s.Drain
		byOperator[s.Group] = byOperator[s.Group] || s.drains.byOperator.Load()
	}
	for _, s := range servers {
		if g := groups[s.Group]; g != nil {
			s.group.Store(g)
			s.Drain = drains[s.Group]
			s.drains.byOperator.Store(byOperator[s.Group])
		}
	}
}

// GroupNumber names the group of servers that step together; 0 is none.
func (s *Server) GroupNumber() int {
	if g := s.group.Load(); g != nil {
		return g.number
	}
	return 0
}
