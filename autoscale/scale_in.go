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
}

// ScaleInCandidates are the n units that are cheapest to lose, the cheapest first. Where a set
// loses its highest, that is the one, cheap or not. A unit that was chosen before stays chosen:
// it drains already. Of the others those go whose requests and caches are the fewest tokens.
func ScaleInCandidates(units []Unit, n int) []Unit {
	order := slices.Clone(units)
	slices.SortFunc(order, func(a, b Unit) int {
		return cmp.Or(
			-cmp.Compare(a.Ordinal, b.Ordinal),
			-cmp.Compare(oneIf(a.Draining), oneIf(b.Draining)),
			cmp.Compare(a.KV+a.CacheSavings, b.KV+b.CacheSavings),
			cmp.Compare(a.Streams, b.Streams),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return order[:max(0, min(n, len(order)))]
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
	Since time.Time `json:"since"`
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
		_, units[i].Draining = since[units[i].Name]
	}
	var draining []DrainingUnit
	drained := 0
	for _, u := range ScaleInCandidates(units, n) {
		d := DrainingUnit{Unit: u.Name, Since: now}
		if u.Draining { // at first all gateways must learn of it
			d.Since = since[u.Name]
			d.Empty = u.Streams == 0 || now.Sub(d.Since) >= drainLimit
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
