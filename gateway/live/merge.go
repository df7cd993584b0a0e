package live

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
)

// merge is what the page shows of a model: what this gateway reports, and what the others answered.
func merge(model string, own *Report, others []answer) State {
	m := merger{
		state: State{At: own.At, Gateway: own.Gateway, Links: Links{Classes: own.Links.Classes}},
		place: make(map[string]int), pair: make(map[[2]string]int), models: make(map[string]*history.Counts),
		history: history.NewCounts(own.At),
	}
	m.add(own, 0)
	for i := range others {
		if a := &others[i]; a.report != nil {
			m.add(a.report, a.behind)
		} else {
			m.state.Gateways = append(m.state.Gateways, Gateway{Replica: a.replica, Version: a.version, Silent: a.silent})
		}
	}
	return m.finish(model)
}

// merger adds reports up.
type merger struct {
	state   State
	place   map[string]int    // of servers in state.Servers, by ID
	views   [][]View          // of those servers
	pair    map[[2]string]int // places in state.Links.Pairs, by the IDs of prefill and decode
	models  map[string]*history.Counts
	history *history.Counts
	seconds float64 // of the last minute, of the gateway that counted longest
}

// add adds the report of a gateway whose clock is behind by so much.
func (m *merger) add(r *Report, behind time.Duration) {
	g := r.Gateway
	if r.History != nil {
		m.history.Add(r.History, behind)
		lately := r.History.View().Lately
		g.Lately = pointOf(lately)
		g.Lately.Seconds = secondsOf(r, lately.Start)
		m.seconds = max(m.seconds, g.Lately.Seconds)
	}
	m.state.Gateways = append(m.state.Gateways, g)
	for i := range r.Servers {
		m.addServer(&r.Servers[i], g.Replica)
	}
	for i := range r.Links.Pairs {
		m.addLink(&r.Links.Pairs[i], r.Servers)
	}
	for _, counts := range r.Models {
		if m.models[counts.ID] == nil {
			m.models[counts.ID] = history.NewCounts(m.state.At)
		}
		if counts.Counts != nil {
			m.models[counts.ID].Add(counts.Counts, behind)
		}
	}
	for _, p := range r.Scaling {
		m.addPool(p)
	}
	for _, d := range r.Decisions {
		d.Gateway = g.Replica
		m.state.Decisions = append(m.state.Decisions, d)
	}
}

// secondsOf is how much of the time since the start of what a gateway counted lately it was there, a second at least. One
// whose clock has been set back since it began counts for all of it.
func secondsOf(r *Report, start time.Time) float64 {
	at := r.At.Round(0) // by the wall clock, as the others
	lately := at.Sub(start)
	if age := at.Sub(r.Gateway.Since.Round(0)); age >= 0 {
		lately = min(lately, age)
	}
	return max(1, lately.Seconds())
}

// How urgent states and breakers are.
var (
	urgentStates   = []string{pools.Alive.String(), pools.Unresponsive.String(), pools.Down.String()}
	urgentBreakers = []string{string(breaker.Closed), string(breaker.HalfOpen), string(breaker.Open)}
)

// worse is the more urgent of two.
func worse(urgent []string, a, b string) string {
	if slices.Index(urgent, b) > slices.Index(urgent, a) {
		return b
	}
	return a
}

// addServer adds what a gateway knows of a server.
func (m *merger) addServer(s *Server, gateway string) {
	view := View{Gateway: gateway, State: s.State}
	for _, leg := range []*Leg{s.Prefill, s.Decode} {
		if leg != nil {
			view.Breaker = worse(urgentBreakers, view.Breaker, leg.Breaker)
		}
	}
	at, known := m.place[s.ID]
	if !known {
		m.place[s.ID] = len(m.state.Servers)
		m.state.Servers, m.views = append(m.state.Servers, *s), append(m.views, []View{view})
		return
	}
	m.views[at] = append(m.views[at], view)
	all := &m.state.Servers[at]
	if worst := worse(urgentStates, all.State, s.State); worst != all.State {
		all.State, all.Reason = worst, s.Reason
	}
	all.Draining = all.Draining || s.Draining
	all.Prefill, all.Decode = sumOfLegs(all.Prefill, s.Prefill), sumOfLegs(all.Decode, s.Decode)
	for _, gauge := range []struct{ of, by **float64 }{
		{&all.KVUsed, &s.KVUsed}, {&all.KVTokens, &s.KVTokens}, {&all.Running, &s.Running}, {&all.Waiting, &s.Waiting},
	} {
		if *gauge.of == nil {
			*gauge.of = *gauge.by
		}
	}
	if len(all.Models) == 0 {
		all.Models, all.Adapters = s.Models, s.Adapters
	}
}

// sumOfLegs is what two gateways have under way on a server. Each knows of the other's by Redis, a
// moment late: of all there is what the one knows that knows most, or what both have together.
func sumOfLegs(a, b *Leg) *Leg {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	own := a.Own + b.Own
	return &Leg{
		Breaker: worse(urgentBreakers, a.Breaker, b.Breaker), Reason: cmp.Or(a.Reason, b.Reason), Requests: max(a.Requests, b.Requests, own), Own: own,
		Tokens: max(a.Tokens, b.Tokens), QueueMs: max(a.QueueMs, b.QueueMs),
	}
}

// addLink adds the transfers between two of a gateway's servers that it has seen.
func (m *merger) addLink(l *LinkPair, servers []Server) {
	if l.Prefill < 0 || l.Prefill >= len(servers) || l.Decode < 0 || l.Decode >= len(servers) {
		return // of no server that it names
	}
	names := [2]string{servers[l.Prefill].ID, servers[l.Decode].ID}
	at, known := m.pair[names]
	if !known {
		m.pair[names] = len(m.state.Links.Pairs)
		m.state.Links.Pairs = append(m.state.Links.Pairs, LinkPair{m.place[names[0]], m.place[names[1]], l.Link})
		return
	}
	all := &m.state.Links.Pairs[at].Link
	if all.Measured > 0 && l.Measured > 0 { // both saw some
		sum := math.Log(all.Measured)*float64(all.Transfers) + math.Log(l.Measured)*float64(l.Transfers)
		all.Measured = rounded(math.Exp(sum / float64(all.Transfers+l.Transfers)))
	} else {
		all.Measured, all.Distance = max(all.Measured, l.Measured), cmp.Or(all.Distance, l.Distance)
	}
	all.Transfers += l.Transfers
	all.Moving += l.Moving
	if l.Slower > all.Slower {
		all.Slower, all.Blamed = l.Slower, l.Blamed
	}
	if l.FailedAt != nil && (all.FailedAt == nil || l.FailedAt.After(*all.FailedAt)) {
		all.FailedAt = l.FailedAt
	}
}

// addPool adds what a gateway wants of a pool. All follow one decision where they share a Redis: the
// last one counts.
func (m *merger) addPool(p Pool) {
	at := slices.IndexFunc(m.state.Scaling, func(q Pool) bool { return q.Model == p.Model && q.Role == p.Role && q.Variant == p.Variant })
	switch {
	case at < 0:
		m.state.Scaling = append(m.state.Scaling, p)
	case m.state.Scaling[at].Stale && !p.Stale:
		m.state.Scaling[at] = p
	}
}

// finish puts in order what was added.
func (m *merger) finish(model string) State {
	s := &m.state
	v := m.history.View()
	s.History = History{Model: model, StepSeconds: history.Step.Seconds(), Points: make([]Point, 0, len(v.Points)), Lately: pointOf(v.Lately)}
	s.History.Lately.Seconds = m.seconds
	for _, p := range v.Points {
		s.History.Points = append(s.History.Points, pointOf(p))
	}
	s.Models = []Model{}
	for id, counts := range m.models {
		s.Models = append(s.Models, Model{id, pointOf(counts.View().Lately)})
	}
	slices.SortFunc(s.Models, func(a, b Model) int {
		switch history.Others { // the last one
		case a.ID:
			return 1
		case b.ID:
			return -1
		}
		return cmp.Compare(a.ID, b.ID)
	})
	for i, views := range m.views {
		if slices.ContainsFunc(views, func(v View) bool { return v.State != views[0].State || v.Breaker != views[0].Breaker }) {
			s.Servers[i].Views = views
		}
	}
	m.orderServers()
	slices.SortStableFunc(s.Links.Pairs, func(a, b LinkPair) int { return cmp.Compare(b.Slower, a.Slower) })
	slices.SortStableFunc(s.Gateways, func(a, b Gateway) int { return cmp.Compare(a.Replica, b.Replica) })
	slices.SortStableFunc(s.Decisions, func(a, b Decision) int { return b.At.Compare(a.At) })
	s.Decisions = s.Decisions[:min(len(s.Decisions), shownDecisions)]
	s.Servers, s.Links.Pairs = append([]Server{}, s.Servers...), append([]LinkPair{}, s.Links.Pairs...) // never null
	s.Scaling, s.Decisions = append([]Pool{}, s.Scaling...), append([]Decision{}, s.Decisions...)
	return *s
}

// orderServers puts the servers in their order, prefill first and then by ID, and has the pairs follow.
func (m *merger) orderServers() {
	role := map[string]int{pools.Prefill.String(): 0, pools.Both.String(): 1, pools.Decode.String(): 2}
	slices.SortFunc(m.state.Servers, func(a, b Server) int {
		return cmp.Or(cmp.Compare(role[a.Role], role[b.Role]), cmp.Compare(a.ID, b.ID))
	})
	moved := make([]int, len(m.state.Servers)) // new place, by old one
	for i := range m.state.Servers {
		moved[m.place[m.state.Servers[i].ID]] = i
	}
	for i := range m.state.Links.Pairs {
		p := &m.state.Links.Pairs[i]
		p.Prefill, p.Decode = moved[p.Prefill], moved[p.Decode]
	}
}

// list is what the state says of links, by the names of their servers.
func (s *State) list() LinkList {
	list := LinkList{Classes: s.Links.Classes, Pairs: []NamedLink{}, Silent: make(map[string]string)}
	for _, p := range s.Links.Pairs {
		list.Pairs = append(list.Pairs, NamedLink{s.Servers[p.Prefill].ID, s.Servers[p.Decode].ID, p.Link})
	}
	for _, g := range s.Gateways {
		if g.Silent != "" {
			list.Silent[g.Replica] = g.Silent
		}
	}
	return list
}
