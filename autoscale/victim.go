package autoscale

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// Unit is what is scaled, as scaling in weighs it.
type Unit struct {
	Name    string
	KV      float64 // tokens that requests hold on its servers
	Hot     float64 // tokens of prompts that its caches saved lately, and others would compute
	Streams int     // requests in flight
	Ordinal int     // in a set that loses its highest first; -1: any may go
	Leaving bool    // it was chosen before, and drains
}

// Victims are the n units that are cheapest to lose, the cheapest first. Where a set loses
// its highest, that is who goes, cheap or not. Who was chosen before stays chosen: it
// drains already. Of the others those go whose requests and caches are the fewest tokens.
func Victims(units []Unit, n int) []Unit {
	order := slices.Clone(units)
	slices.SortFunc(order, func(a, b Unit) int {
		return cmp.Or(
			-cmp.Compare(a.Ordinal, b.Ordinal),
			-cmp.Compare(oneIf(a.Leaving), oneIf(b.Leaving)),
			cmp.Compare(a.KV+a.Hot, b.KV+b.Hot),
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

// Leaving is a unit that scaling in takes.
type Leaving struct {
	Unit  string    `json:"unit"`
	Since time.Time `json:"since"`
	Empty bool      `json:"empty"` // nothing runs on it any more, or not for much longer
}

// drainLimit is how long a victim is waited for. What runs for longer is left to the hook
// that ends it.
const drainLimit = 5 * time.Minute

// leave chooses who goes where fewer are wanted than are there, and holds the wanted
// number up for as long as they drain: in a set that loses its highest, those above an
// empty one too.
func leave(want Want, units []Unit, before []Leaving, now time.Time) (Want, []Leaving) {
	n := len(units) - want.Servers
	if n <= 0 {
		return want, nil
	}
	since := make(map[string]time.Time)
	for _, l := range before {
		since[l.Unit] = l.Since
	}
	for i := range units {
		_, units[i].Leaving = since[units[i].Name]
	}
	var leaving []Leaving
	drained := 0
	for _, u := range Victims(units, n) {
		l := Leaving{Unit: u.Name, Since: now}
		if u.Leaving { // at first all gateways must hear of it
			l.Since = since[u.Name]
			l.Empty = u.Streams == 0 || now.Sub(l.Since) >= drainLimit
		}
		if highest := drained == len(leaving); l.Empty && (u.Ordinal < 0 || highest) {
			drained++
		}
		leaving = append(leaving, l)
	}
	if drained < n {
		want.Servers, want.Reason = len(units)-drained, Draining
	}
	return want, leaving
}

// weigh returns the units of a pool. hot is of all gateways, by server.
func weigh(servers []*pools.Server, of *PoolWant, model string, hot map[string]float64, now time.Time) []Unit {
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
		u.Hot += hot[s.ID()]
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
