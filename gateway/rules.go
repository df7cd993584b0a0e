package gateway

// Rules are what the objects of a cluster say of requests, beside the configuration.
type Rules struct {
	Levels   map[string]int // of requests by the InferenceObjective that they name: the higher is served first
	Aliases  []Alias        // behind those of the configuration
	Fallback []Target       // of requests for every model that has no alias; none: that model
}

// SetRules makes these the rules of requests that come from now on.
func (s *Server) SetRules(r Rules) { s.rules.Store(&r) }

// currentRules are the rules of this moment.
func (s *Server) currentRules() Rules {
	if r := s.rules.Load(); r != nil {
		return *r
	}
	return Rules{}
}

// levelOf is the priority of an InferenceObjective, nil for one that is not there.
func (s *Server) levelOf(objective string) *int {
	if objective == "" {
		return nil
	}
	level, there := s.currentRules().Levels[objective]
	if !there {
		return nil
	}
	return &level
}

// aliases are those of the configuration and of the rules, in the order in which they count.
func (s *Server) aliases() []Alias {
	rules := s.currentRules()
	if len(rules.Aliases) == 0 {
		return s.cfg.Aliases
	}
	return append(s.cfg.Aliases[:len(s.cfg.Aliases):len(s.cfg.Aliases)], rules.Aliases...)
}
