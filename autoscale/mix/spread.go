package mix

import (
	"fmt"
	"time"

	"github.com/tandem-gateway/tandem/autoscale"
)

// Stock is the hardware that a gateway may want servers of.
type Stock struct {
	Variants []Variant // their capacities count until servers have shown their own
}

// How a stock is chosen from.
const (
	solveTime   = 200 * time.Millisecond
	startHours  = 0.1       // a start costs as much as so many hours of the cheapest server
	enough      = 0.98      // share of the work that what stands must do, to stay
	noObjective = time.Hour // for a first token
)

// Spread chooses units for the work: the cheapest that do it, those that run counted for
// less than those that must start. What stands stays while it does the work.
func (s *Stock) Spread(a autoscale.Asked) (autoscale.Spread, error) {
	variants, err := s.shown(a.Shown)
	if err != nil {
		return autoscale.Spread{}, err
	}
	if a.PrefillRate <= 0 && a.DecodeRate <= 0 {
		return spreadOf(variants, &Mix{Prefill: make([]int, len(variants)), Decode: make([]int, len(variants))}), nil
	}
	if a.Standing != nil && does(variants, a) {
		return *a.Standing, nil
	}
	p := Problem{Variants: variants, Use: 1, Switch: startHours * variants[0].Cost}
	for i := range variants {
		p.Switch = min(p.Switch, startHours*variants[i].Cost)
	}
	// A hair less, or what rounding of figures added would be a server.
	p.Classes = []Class{{
		Name: "mean", Uncached: a.Computed, Prompt: a.Prompt, Output: a.Output, Context: a.Context, ITL: a.ITL, TTFT: noObjective,
		Rate: 0.999 * max(a.PrefillRate/a.Computed, 1e-9), DecodeRate: 0.999 * max(a.DecodeRate/a.Output, 1e-9),
	}}
	if a.TTFT > 0 && p.anyPrefillsWithin(a.TTFT) {
		p.Classes[0].TTFT = a.TTFT
	}
	m, err := p.Solve(solveTime)
	if err != nil {
		return autoscale.Spread{}, err
	}
	return spreadOf(variants, m), nil
}

// shown returns the variants with what runs of them, and what that has shown.
func (s *Stock) shown(all []autoscale.Hardware) ([]Variant, error) {
	variants := append([]Variant(nil), s.Variants...)
	byName := make(map[string]*Variant, len(variants))
	for i := range variants {
		byName[variants[i].Name] = &variants[i]
	}
	for i := range all {
		k := &all[i]
		v := byName[k.Variant]
		if v == nil {
			return nil, fmt.Errorf("servers are of the variant %q, which is not among the hardware", k.Variant)
		}
		k.Teach(&v.Capacity)
		if k.Prefills() {
			v.Prefill = k.Ready
		} else {
			v.Decode = k.Ready
		}
	}
	return variants, nil
}

// does reports whether what stands does the work.
func does(variants []Variant, a autoscale.Asked) bool {
	prefill, decode := 0.0, 0.0
	for i := range variants {
		v := &variants[i]
		prefill += float64(a.Standing.Prefill[v.Name]) * v.Capacity.PrefillSpeed(a.Computed, a.Prompt-a.Computed)
		decode += float64(a.Standing.Decode[v.Name]) * v.Capacity.DecodeSpeed(a.ITL, a.Context)
	}
	return prefill >= enough*a.PrefillRate && decode >= enough*a.DecodeRate
}

// anyPrefillsWithin reports whether some variant can meet an objective at all: where none
// can, it is no reason to want no server.
func (p *Problem) anyPrefillsWithin(ttft time.Duration) bool {
	c := &p.Classes[0]
	for i := range p.Variants {
		if p.Variants[i].Capacity.PrefillSeconds(c.Uncached, c.Prompt-c.Uncached) <= ttft.Seconds() {
			return true
		}
	}
	return false
}

func spreadOf(variants []Variant, m *Mix) autoscale.Spread {
	s := autoscale.Spread{Prefill: make(map[string]int), Decode: make(map[string]int), Prices: m.Prices}
	for i := range variants {
		s.Prefill[variants[i].Name], s.Decode[variants[i].Name] = m.Prefill[i], m.Decode[i]
	}
	return s
}
