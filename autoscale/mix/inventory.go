package mix

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Inventory is the hardware that a gateway may want servers of.
type Inventory struct {
	Variants []Variant // their capacities count until servers have shown their own
}

// How a inventory is chosen from.
const (
	solveTime   = 200 * time.Millisecond
	startHours  = 0.1       // a start costs as much as so many hours of the cheapest server
	enough      = 0.98      // share of the work that what stands must do, to stay
	noObjective = time.Hour // for a first token
)

// Allocate chooses units for the work: the cheapest that do it, those that run counted for
// less than those that must start. What stands stays while it does the work. Which lengths
// are to go where of what runs is said beside it.
func (inv *Inventory) Allocate(a AllocationRequest) (HardwareAllocation, error) {
	variants, err := inv.shown(a.Running)
	if err != nil {
		return HardwareAllocation{}, err
	}
	if a.PrefillRate <= 0 && a.DecodeRate <= 0 {
		return allocationOf(variants, &Mix{Prefill: make([]int, len(variants)), Decode: make([]int, len(variants))}), nil
	}
	found, err := inv.find(variants, a)
	if err != nil {
		return HardwareAllocation{}, err
	}
	found.Shares = Shares(variants, &a.Traffic, a.TTFT)
	return found, nil
}

// find is the hardware for the work.
func (inv *Inventory) find(variants []Variant, a AllocationRequest) (HardwareAllocation, error) {
	p := Problem{Variants: variants, Classes: workOf(variants, a), Use: 1, Switch: math.Inf(1)}
	for i := range variants {
		p.Switch = min(p.Switch, startHours*variants[i].Cost)
	}
	if a.Current != nil && p.servedBy(a.Current) {
		return *a.Current, nil
	}
	m, err := p.Solve(solveTime)
	if err != nil {
		return HardwareAllocation{}, err
	}
	return allocationOf(variants, m), nil
}

// workOf is what the work consists of: where there is hardware to choose from, the
// classes of what was asked for lately, else mean requests. It is a hair less, or what
// rounding of figures added would be a server.
func workOf(variants []Variant, a AllocationRequest) []Class {
	mean := Class{Name: "mean", Rate: 1, Uncached: a.Computed, Prompt: a.Prompt, Output: a.Output, Context: a.Context, TTFT: a.TTFT}
	mean.relax(variants)
	classes, _ := classesOf(variants, &a.Traffic, a.TTFT)
	if len(variants) < 2 || len(classes) == 0 {
		classes = []Class{mean}
	}
	computed, output := 0.0, 0.0
	for i := range classes {
		c := &classes[i]
		computed += c.Rate * c.Uncached
		output += c.Rate * c.Output
	}
	for i := range classes {
		c := &classes[i]
		c.ITL, c.DecodeRate = a.ITL, 0.999*max(c.Rate*a.DecodeRate/output, 1e-9)
		c.Rate = 0.999 * max(c.Rate*a.PrefillRate/computed, 1e-9)
	}
	return classes
}

// shown returns the variants with what runs of them, and what that has shown.
func (inv *Inventory) shown(all []RunningUnits) ([]Variant, error) {
	variants := append([]Variant(nil), inv.Variants...)
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
		if k.Prefills {
			v.Prefill = k.Units
		} else {
			v.Decode = k.Units
		}
	}
	return variants, nil
}

// servedBy reports whether what stands does the work, whatever the objective of the first
// token: speeds that waver about it are no reason for other hardware.
func (p *Problem) servedBy(standing *HardwareAllocation) bool {
	with := Problem{Use: p.Use, Classes: slices.Clone(p.Classes), Variants: slices.Clone(p.Variants)}
	for i := range with.Classes {
		with.Classes[i].TTFT = noObjective
	}
	for i := range with.Variants {
		v := &with.Variants[i]
		v.Prefill, v.Decode = standing.Prefill[v.Name], standing.Decode[v.Name]
	}
	_, prefill := with.balance(prefilling)
	_, decode := with.balance(decoding)
	return max(prefill, decode) <= 1/enough
}

func allocationOf(variants []Variant, m *Mix) HardwareAllocation {
	s := HardwareAllocation{Prefill: make(map[string]int), Decode: make(map[string]int), Prices: m.Prices}
	for i := range variants {
		s.Prefill[variants[i].Name], s.Decode[variants[i].Name] = m.Prefill[i], m.Decode[i]
	}
	return s
}
