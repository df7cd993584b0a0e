package autoscale

import (
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

func sumOf(units map[string]int) (sum int) {
	for _, n := range units {
		sum += n
	}
	return sum
}

// PoolWant is what is wanted of a role, of one kind of hardware where there are several.
type PoolWant struct {
	Role    pools.Role  `json:"role"`
	Variant string      `json:"variant,omitempty"`
	Any     bool        `json:"any,omitempty"` // of any hardware: it is not chosen
	Want    sizing.Want `json:"want"`
	// Engines are those that grow in place: Want counts their ranks. 0: it counts units.
	Engines int `json:"engines,omitempty"`
}

// sized is what is asked for: units as wanted, or of engines that grow in place those that
// are there, each of a size in ranks. The first of them has one.
func (w *PoolWant) sized() (units, size int) {
	ranks := w.Want.Servers
	if w.Engines == 0 || ranks == 0 {
		return ranks, 0
	}
	return w.Engines, (ranks + w.Engines - 1) / w.Engines
}

// covers reports whether a server counts for the pool.
func (w *PoolWant) covers(s *pools.Server) bool {
	return roleOf(s) == w.Role && (w.Any || s.Variant == w.Variant)
}

// pools turns a plan into what is wanted of each pool, by hardware where that is to be
// chosen. Where it cannot be, the log says so, and what is wanted is of any; so it is
// where nothing stands and the signals decide nothing.
func (s *Scaler) pools(m *memory, plan sizing.Plan, in *sizing.Signals, state *State) []PoolWant {
	anyOf := []PoolWant{
		{Role: pools.Prefill, Any: true, Want: plan.Prefill, Engines: state.engines(pools.Prefill)},
		{Role: pools.Decode, Any: true, Want: plan.Decode, Engines: state.engines(pools.Decode)},
	}
	if s.Allocate == nil || !plan.Known || plan.Prefill.Reason == sizing.Stale && m.Allocation == nil {
		return anyOf
	}
	if err := m.allocate(s.Allocate, plan, in, state); err != nil {
		if m.NoAllocation != err.Error() {
			s.log.Warn("hardware is not chosen", "error", err.Error())
		}
		m.Allocation, m.NoAllocation = nil, err.Error()
		return anyOf
	}
	m.NoAllocation = ""
	state.Prices, state.Shares = m.Allocation.Prices, m.Allocation.Shares
	var wants []PoolWant
	for variant, n := range m.Allocation.Prefill {
		wants = append(wants, PoolWant{Role: pools.Prefill, Variant: variant, Want: sizing.Want{Servers: n, Reason: plan.Prefill.Reason}})
	}
	for variant, n := range m.Allocation.Decode {
		wants = append(wants, PoolWant{Role: pools.Decode, Variant: variant, Want: sizing.Want{Servers: n, Reason: plan.Decode.Reason}})
	}
	holdBack(wants, state.Hardware)
	return wants
}

// holdBack keeps the units of a role that are there for as long as others of it that are
// wanted are not: these may be what takes their place.
func holdBack(wants []PoolWant, shown []Hardware) {
	ready := func(w *PoolWant) int {
		for i := range shown {
			if shown[i].Role == w.Role && shown[i].Variant == w.Variant {
				return shown[i].Ready
			}
		}
		return 0
	}
	starting := make(map[pools.Role]bool)
	for i := range wants {
		w := &wants[i]
		starting[w.Role] = starting[w.Role] || w.Want.Servers > ready(w)
	}
	for i := range wants {
		w := &wants[i]
		if there := ready(w); starting[w.Role] && w.Want.Servers < there {
			w.Want.Servers, w.Want.Reason = there, sizing.Pending
		}
	}
}

// allocate finds the hardware for a plan. What stands is asked to stay while the plan does,
// and stays where the signals decide nothing.
func (m *memory) allocate(find mix.Allocator, plan sizing.Plan, in *sizing.Signals, state *State) error {
	if plan.Prefill.Reason == sizing.Stale {
		return nil
	}
	w := &state.workload
	asked := mix.AllocationRequest{
		Prompt: w.prompt, Computed: w.computed, Output: w.output, Context: w.context, TTFT: w.ttft, ITL: w.itl, Running: shown(state.Hardware), Traffic: w.traffic,
		PrefillRate: plan.Prefill.Load * in.PrefillSpeed, DecodeRate: plan.Decode.Load * in.DecodeSpeed,
	}
	servers := [2]int{plan.Prefill.Servers, plan.Decode.Servers}
	if servers == m.AllocatedFor {
		asked.Current = m.Allocation
	}
	found, err := find(asked)
	if err != nil {
		return err
	}
	m.Allocation, m.AllocatedFor = &found, servers
	return nil
}

// wanted is what is published of a model: each role as a whole, and each kind of hardware
// where it is chosen. A kind of which none is wanted is not woken by requests that wait.
func (d *Decision) wanted(model string) []Wanted {
	prefill := Wanted{Model: model, Role: pools.Prefill.String(), Want: d.Plan.Prefill, WaitingForCapacity: d.WaitingForCapacity, At: d.At}
	decode := Wanted{Model: model, Role: pools.Decode.String(), Want: d.Plan.Decode, WaitingForCapacity: d.WaitingForCapacity, At: d.At}
	prefill.Servers, decode.Servers = 0, 0 // summed up below
	var kinds []Wanted
	for i := range d.Pools {
		w := &d.Pools[i]
		whole := &prefill
		if w.Role == pools.Decode {
			whole = &decode
		}
		units, size := w.sized()
		whole.Servers += units
		whole.Size = max(whole.Size, size)
		if w.Want.Reason == sizing.Draining {
			whole.Reason = sizing.Draining
		}
		if !w.Any {
			kinds = append(kinds, Wanted{Model: model, Role: w.Role.String(), Variant: w.Variant, Want: w.Want, At: d.At})
		}
	}
	return append(kinds, prefill, decode)
}

// shown describes hardware for the choice of it.
func shown(all []Hardware) []mix.RunningUnits {
	var out []mix.RunningUnits
	for i := range all {
		k := &all[i]
		out = append(out, mix.RunningUnits{Variant: k.Variant, Prefills: k.Prefills(), Units: k.Ready, Teach: k.Teach})
	}
	return out
}
