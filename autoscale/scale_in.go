package autoscale

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

// Unit is what is scaled, as scaling in weighs it.
type Unit struct {
	Name         string
	KV           float64 // tokens that requests hold on its servers
	CacheSavings float64 // tokens of prompts that its caches saved lately, and others would compute
	Streams      int     // requests in flight
	Ordinal      int     // in a set that loses its highest first; -1: any may go
	Draining     bool    // it was chosen before, and drains
	Overdue      bool    // it has drained for as long as it is waited for, and goes with what runs on it
}

// tokens is what is lost with the unit.
func (u *Unit) tokens() float64 { return u.KV + u.CacheSavings }

// isEmpty reports whether nothing that runs on the unit is waited for.
func (u *Unit) isEmpty() bool { return u.Streams == 0 || u.Overdue }

// ScaleInCandidates are the n units that are cheapest to lose, the cheapest first. Where a set
// loses its highest, that is the one, cheap or not. A unit that was chosen before stays chosen:
// it drains already. Of the others those go whose requests and caches are the fewest tokens.
//
// A unit that drains and still has requests is exchanged for one that has none and is fewer tokens:
// that one can go at once, and a request may run for minutes yet.
func ScaleInCandidates(units []Unit, n int) []Unit {
	order := slices.Clone(units)
	slices.SortFunc(order, func(a, b Unit) int {
		return cmp.Or(
			-cmp.Compare(a.Ordinal, b.Ordinal),
			-cmp.Compare(oneIf(a.Draining), oneIf(b.Draining)),
			cmp.Compare(a.tokens(), b.tokens()),
			cmp.Compare(a.Streams, b.Streams),
			cmp.Compare(a.Name, b.Name),
		)
	})
	n = max(0, min(n, len(order)))
	chosen, others := order[:n], order[n:]
	for i := range chosen {
		if u := &chosen[i]; u.Draining && !u.isEmpty() && u.Ordinal < 0 {
			exchangeForIdle(u, others)
		}
	}
	return chosen
}

// exchangeForIdle swaps a unit with the cheapest of the others that has no request and is fewer tokens,
// if there is one.
func exchangeForIdle(u *Unit, others []Unit) {
	idle := slices.IndexFunc(others, func(o Unit) bool { return o.Streams == 0 && o.tokens() < u.tokens() })
	if idle >= 0 {
		*u, others[idle] = others[idle], *u
	}
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// DrainingUnit is a unit that scaling in takes.
type DrainingUnit struct {
	Unit  string    `json:"unit"`
	Since time.Time `json:"since"` // since when it drains, or the unit that it was chosen in the place of
	Empty bool      `json:"empty"` // nothing runs on it any more, or not for much longer
}

// drainLimit is how long a draining unit is waited for. What runs for longer is left to the hook
// that ends it.
const drainLimit = 5 * time.Minute

// scaleIn chooses which units drain where fewer are wanted than are there, and holds the wanted
// number up for as long as they drain: in a set that loses its highest, those above an
// empty one too.
func scaleIn(want sizing.Want, units []Unit, before []DrainingUnit, now time.Time) (sizing.Want, []DrainingUnit) {
	n := len(units) - want.Servers
	if n <= 0 {
		return want, nil
	}
	since := make(map[string]time.Time)
	for _, d := range before {
		since[d.Unit] = d.Since
	}
	for i := range units {
		u := &units[i]
		if at, drains := since[u.Name]; drains {
			u.Draining, u.Overdue = true, now.Sub(at) >= drainLimit
		}
	}
	chosen := ScaleInCandidates(units, n)
	spared := sparedSince(units, chosen, since)
	var draining []DrainingUnit
	drained := 0
	for _, u := range chosen {
		d := DrainingUnit{Unit: u.Name, Since: now}
		switch {
		case u.Draining: // at first all gateways must learn of it
			d.Since, d.Empty = since[u.Name], u.isEmpty()
		case len(spared) > 0:
			d.Since, spared = spared[0], spared[1:]
		}
		if highest := drained == len(draining); d.Empty && (u.Ordinal < 0 || highest) {
			drained++
		}
		draining = append(draining, d)
	}
	if drained < n {
		want.Servers, want.Reason = len(units)-drained, sizing.Draining
	}
	return want, draining
}

// sparedSince returns since when those units drained that are not chosen any more, the first one first. Who is
// chosen in their place is waited for no longer than they would be: else the wanted number might never fall.
func sparedSince(units, chosen []Unit, since map[string]time.Time) (spared []time.Time) {
	for _, u := range units {
		if u.Draining && !slices.ContainsFunc(chosen, func(c Unit) bool { return c.Name == u.Name }) {
			spared = append(spared, since[u.Name])
		}
	}
	slices.SortFunc(spared, time.Time.Compare)
	return spared
}

// unitsOf returns the units of a pool. savings is of all gateways, by server.
func unitsOf(servers []*pools.Server, of *PoolWant, model string, savings map[string]float64, now time.Time) []Unit {
	byName := make(map[string]*Unit)
	var names []string
	for _, s := range servers {
		if h := s.Health(); !h.Up || s.Drain || !h.Serves(model) || !of.covers(s) {
			continue
		}
		u := byName[s.UnitName()]
		if u == nil {
			u = &Unit{Name: s.UnitName(), Ordinal: -1}
			byName[u.Name] = u
			names = append(names, u.Name)
		}
		if s.Ordinal != nil {
			u.Ordinal = *s.Ordinal
		}
		u.CacheSavings += savings[s.ID()]
		for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			work := s.InFlight(leg, now)
			u.KV += float64(work.Tokens)
			u.Streams += work.Requests
		}
	}
	units := make([]Unit, 0, len(names))
	for _, name := range names {
		units = append(units, *byName[name])
	}
	return units
}
