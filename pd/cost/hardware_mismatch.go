package cost

import "github.com/tandem-gateway/tandem/pools/share"

// hardwareMismatchCost is what it costs to be prefilled by hardware that the plan gives none of the
// requests of these lengths, in parts of the prefill there. It is small beside a queue: no
// request waits for the right hardware longer than this part of its prefill, and what is
// out, or misses an objective, is not made up for by any of it. See autoscale/DESIGN.md for
// what others gave in the simulator.
const hardwareMismatchCost = 0.3

// hardwareMismatches appends what each prefill server costs a request more, in seconds, since
// the plan of the hardware (share.Table) gives requests of its lengths to others:
//
//	hardwareMismatchCost x prefill there x (1 - its kind's share / the largest share of a kind here)
//
// Nothing is appended where there is no plan for such requests, or only for hardware that
// is not here. Servers of a kind that the plan does not know cost nothing more.
func hardwareMismatches(to []float64, r Demand, f *Candidates, prefill []float64) []float64 {
	if f.Shares == nil {
		return to
	}
	parts := f.Shares.Prefill[share.ClassOf(r.PromptTokens, r.OutputTokens)]
	largest := 0.0
	for i := range f.Prefill {
		if c := &f.Prefill[i]; c.Kind > 0 && c.Kind <= len(parts) && !c.Excluded && !c.NoPair {
			largest = max(largest, parts[c.Kind-1])
		}
	}
	if largest == 0 {
		return to
	}
	for i := range f.Prefill {
		mismatch := 0.0
		if kind := f.Prefill[i].Kind; kind > 0 && kind <= len(parts) && parts[kind-1] < largest {
			mismatch = hardwareMismatchCost * prefill[i] * (1 - parts[kind-1]/largest)
		}
		to = append(to, mismatch)
	}
	return to
}
