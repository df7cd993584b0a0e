package pools

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// notProbed is the reason of a server that was not probed yet.
const notProbed = "not probed yet"

// Health is what the last probe that was answered found. A server that is not Up takes
// nothing; whether one that is lives still, its State says.
type Health struct {
	Up     bool
	Reason string  // why it is down
	Models []Model // what it serves, or served when last up, as its /v1/models lists them

	at map[string]int // where in Models a name stands; nil: where there are few
}

// fewModels are found by looking at each.
const fewModels = 16

// serving returns the health with other models. It keeps them.
func (h Health) serving(models []Model) Health {
	h.Models, h.at = models, nil
	if len(models) <= fewModels {
		return h
	}
	h.at = make(map[string]int, len(models))
	for i, m := range models {
		if _, twice := h.at[m.ID]; !twice {
			h.at[m.ID] = i
		}
	}
	return h
}

// model returns what the engine reported of one that it serves, whatever the number of others.
func (h Health) model(id string) (Model, bool) {
	if h.at != nil {
		i, found := h.at[id]
		if !found {
			return Model{}, false
		}
		return h.Models[i], true
	}
	for _, m := range h.Models {
		if m.ID == id {
			return m, true
		}
	}
	return Model{}, false
}

// Serves reports whether the engine lists the model.
func (h Health) Serves(model string) bool {
	_, yes := h.model(model)
	return yes
}

// Model is one entry of an engine's /v1/models.
type Model struct {
	ID          string
	Parent      string // base model of an adapter, else empty
	Owner       string // owned_by, which is the engine's name for itself
	MaxModelLen int    // tokens; 0 is unknown
	Created     int64  // unix seconds, as the engine reports
}

// Model returns a model that some server serves, or served when last up, or can load.
func (f *Fleet) Model(id string) (Model, bool) {
	for _, s := range f.Servers() {
		if m, served := s.Health().model(id); served {
			return m, true
		}
	}
	a, onDemand := f.cfg.Adapters.Find(id)
	for _, s := range f.Servers() {
		if base, fits := a.BaseIn(s.Health().Models); onDemand && fits {
			return a.asModel(base), true
		}
	}
	return Model{}, false
}

// LongestContext is the longest context of a base model among the servers that decode, in tokens;
// 0 where one of them does not report it, or there is none. It is asked several times a request, and found once for all
// until a server says something else.
func (f *Fleet) LongestContext(base string) (longest int) {
	states := f.states.count.Load()
	known := f.contexts.Load()
	if known != nil && known.states == states {
		if longest, is := known.longest[base]; is {
			return longest
		}
	}
	next := &contexts{states: states, longest: map[string]int{base: f.longestContext(base)}}
	if known != nil && known.states == states && len(known.longest) < mostContexts {
		maps.Copy(next.longest, known.longest)
	}
	f.contexts.Store(next)
	return next.longest[base]
}

// contexts are the longest contexts of base models, as long as servers' states have changed so many times.
type contexts struct {
	states  uint64
	longest map[string]int // not changed any more
}

// mostContexts is of how many base models at once they are kept.
const mostContexts = 64

func (f *Fleet) longestContext(base string) (longest int) {
	for _, s := range f.Servers() {
		m, served := s.health.Load().model(base)
		switch {
		case !served || !s.Role.Serves(Decode):
		case m.MaxModelLen == 0:
			return 0
		default:
			longest = max(longest, m.MaxModelLen)
		}
	}
	return longest
}

// KnowsModels reports whether any server has listed a model.
func (f *Fleet) KnowsModels() bool {
	return slices.ContainsFunc(f.Servers(), func(s *Server) bool { return len(s.Health().Models) > 0 })
}

// Loads reports whether servers of a base model may load an adapter on request.
func (f *Fleet) Loads(base, adapter string) bool {
	a, onDemand := f.cfg.Adapters.Find(adapter)
	return onDemand && (a.Base == "" || a.Base == base)
}

// Models returns the union of what the servers serve, or served when last up, and of
// what they can load, sorted by ID.
func (f *Fleet) Models() []Model {
	seen := make(map[string]bool)
	var models []Model
	add := func(m Model) {
		if !seen[m.ID] {
			seen[m.ID] = true
			models = append(models, m)
		}
	}
	for _, s := range f.Servers() {
		for _, m := range s.Health().Models {
			add(m)
		}
	}
	for _, a := range f.cfg.Adapters.Directory {
		if m, served := f.Model(a.Name); served {
			add(m)
		}
	}
	slices.SortFunc(models, func(a, b Model) int { return cmp.Compare(a.ID, b.ID) })
	return models
}

// missing remembers which roles no server is left for, so that each change is logged once.
type missing struct {
	mu    sync.Mutex // guards roles
	roles [2]bool    // prefill, decode
}

// startingProbes is for how many intervals of probes a server that was found may not have
// been up yet: gateway and engines often start at the same time.
const startingProbes = 2

// isStarting reports whether the server was never up, and was found so lately that it may be
// starting.
func (s *Server) isStarting(now time.Time) bool {
	return s.Incarnation() == 0 && now.Sub(s.vitals.born) < startingProbes*s.fleet.cfg.ProbeInterval
}

// Missing returns the roles that have servers, all of which are down or drain, and decode where only prefill has
// servers. A server that was not probed yet, or may be starting, does not count as down.
func (f *Fleet) Missing() (roles []Role) {
	now := time.Now()
	for _, role := range []Role{Prefill, Decode} {
		there, able := role == Decode && len(f.Servers()) > 0, false // nothing is served without decode
		for _, s := range f.Servers() {
			if s.Role.Serves(role) {
				there, able = true, able || !s.Drains() && (s.ownState() != Down || s.Health().Reason == notProbed || s.isStarting(now))
			}
		}
		if there && !able {
			roles = append(roles, role)
		}
	}
	return roles
}

// updateMissing logs which roles have lost their last server, or have one again, or none to wait for.
func (f *Fleet) updateMissing() {
	f.missing.mu.Lock()
	defer f.missing.mu.Unlock()
	var now [2]bool
	for _, role := range f.Missing() {
		now[LegIndex(role)] = true
	}
	for i, role := range []Role{Prefill, Decode} {
		switch was := f.missing.roles[i]; {
		case now[i] && !was:
			f.log.Warn("role without a server: there is none, or all are down or drain", "role", role.String())
		case was && !now[i] && !slices.ContainsFunc(f.Servers(), func(s *Server) bool { return s.Role.Serves(role) }):
			f.log.Info("the servers of a role are gone: none is listed or found", "role", role.String())
		case was && !now[i]:
			f.log.Info("role has a server again", "role", role.String())
		}
	}
	f.missing.roles = now
}
