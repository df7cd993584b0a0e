package autoscale

import (
	"cmp"
	"slices"

	"github.com/tandem-gateway/tandem/pools"
)

// PoolStatus is what is wanted of a pool beside what it has.
type PoolStatus struct {
	Wanted
	Known   bool // signals have allowed a plan; else Servers says nothing
	Ready   int  // units that serve; of elastic engines, ranks
	Pending int  // that were asked for and do not serve yet; of the role as a whole
	Stale   bool // the signals are too old for anything to go by
}

// Status is what was last decided of each pool, by model, role (prefill first) and variant.
func (s *Scaler) Status() []PoolStatus {
	var all []PoolStatus
	for model, d := range s.current.Load().Models {
		for _, w := range d.wanted(model) {
			all = append(all, d.status(w, s.now().Sub(d.At) > s.cfg.Planner.MaxAge))
		}
	}
	slices.SortFunc(all, func(a, b PoolStatus) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(b.Role, a.Role), cmp.Compare(a.Variant, b.Variant))
	})
	return all
}

func (d *Decision) status(w Wanted, stale bool) PoolStatus {
	st := PoolStatus{Wanted: w, Known: d.Plan.Known, Stale: stale}
	for i := range d.State.Hardware {
		k := &d.State.Hardware[i]
		if k.Role.String() == w.Role && (w.Variant == "" || k.Variant == w.Variant) {
			st.Ready += k.Ready
		}
	}
	if w.Variant == "" {
		st.Pending = d.Signals.Decode.Pending
		if w.Role == pools.Prefill.String() {
			st.Pending = d.Signals.Prefill.Pending
		}
	}
	return st
}
