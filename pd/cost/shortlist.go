package cost

import (
	"math"
	"slices"

	"github.com/tandem-gateway/tandem/pd/order"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Listed is how many servers of each role a shortlist has. All pairs of eight and eight, and each of these alone, are more
// alternatives than people are shown; and with more servers a decision is not packed (package decision).
const Listed = 8

// Whole is what prices depend on of all servers that a choice was among.
type Whole struct {
	Prefills, Decodes int
	Reference         curve.Curve // the mean of the prefill servers'
	Step              float64     // seconds of a decode step, in the mean of the servers
	Groups            []Group
}

// Group is decode servers that step together, which takes as long as on the slowest.
type Group struct {
	Number  int
	Running int
	Step    float64 // seconds
}

func (g Group) compare(number int) int { return g.Number - number }

// Count is how many servers of each role the choice was among, of which a shortlist has a few.
func (f *Candidates) Count() (prefills, decodes int) {
	if f.Whole != nil {
		return f.Whole.Prefills, f.Whole.Decodes
	}
	return len(f.Prefill), len(f.Decode)
}

// AreFew reports whether a shortlist of the servers is they themselves.
func (f *Candidates) AreFew() bool { return len(f.Prefill) <= Listed && len(f.Decode) <= Listed }

// Review is what is remembered of a choice.
type Review struct {
	Few        Candidates  // its servers, in a shortlist
	Alone      Alternative // the cheapest way to have decode alone run the request, which a pair is compared with,
	MayBeAlone bool        // false where that was chosen, or there is none
}

// Review reviews a choice.
func (m *Model) Review(r Demand, f *Candidates, chosen *Alternative) Review {
	if chosen.Prefill == "" && f.AreFew() {
		return Review{Few: *f} // without prices
	}
	w := pricings.Get().(*pricing)
	defer pricings.Put(w)
	w.put(m, r, f)
	return f.Review(&w.servers, &w.ticket, chosen)
}

// Review reviews the choice of a request that is priced on the servers already, as it would be bound at once (Ungate).
func (f *Candidates) Review(s *order.Servers, t *order.Ticket, chosen *Alternative) Review {
	if chosen.Prefill == "" && f.AreFew() {
		return Review{Few: *f}
	}
	s.Ungate()
	for d := range f.Decode {
		s.Decode[d].Excluded = f.Decode[d].Excluded // the order may have kept one for another request
	}
	alone, cost := s.BestAggregated(t, math.Inf(1))
	if math.IsInf(cost, 1) {
		return Review{Few: f.shortlist(s, t, chosen, order.Aggregated)}
	}
	few := f.shortlist(s, t, chosen, alone.Decode)
	if chosen.Prefill == "" {
		return Review{Few: few}
	}
	return Review{Few: few, Alone: f.Alternative(s, t, alone, arrivalPrice(s, t)), MayBeAlone: true}
}

// shortlist is the servers on which a choice was likeliest to fall, at most Listed of each role, the chosen ones among
// them, and the decode server that is best alone, order.Aggregated if there is none: a copy, or all where they are few.
// Priced again, an alternative costs among them what it cost among all.
func (f *Candidates) shortlist(s *order.Servers, t *order.Ticket, chosen *Alternative, alone int) Candidates {
	if f.AreFew() {
		return *f
	}
	pair := order.Pair{Prefill: order.Aggregated, Decode: IndexOf(f.Decode, chosen.Decode)}
	if chosen.Prefill != "" {
		pair.Prefill = IndexOf(f.Prefill, chosen.Prefill)
	}
	few := f.part(s.Cheapest(t, pair, alone, chosen.Price, Listed))
	few.Whole = &Whole{Prefills: len(f.Prefill), Decodes: len(f.Decode), Reference: f.reference, Step: f.meanStep(s), Groups: f.groups()}
	return few
}

// meanStep is the seconds of a decode step, in the mean of all decode servers.
func (f *Candidates) meanStep(s *order.Servers) float64 {
	if f.Whole != nil {
		return f.Whole.Step
	}
	return s.MeanStep()
}

// groups are those in which decode servers step together.
func (f *Candidates) groups() (all []Group) {
	if f.Whole != nil {
		return f.Whole.Groups
	}
	for i := range f.Decode {
		d := &f.Decode[i]
		if d.Group == 0 {
			continue
		}
		at, known := slices.BinarySearchFunc(all, d.Group, Group.compare)
		if !known {
			all = slices.Insert(all, at, Group{Number: d.Group})
		}
		g := &all[at]
		g.Running += d.Running
		g.Step = max(g.Step, d.Step.Seconds(curve.StepFeatures(d.Running, d.KVUsed)))
	}
	return all
}

// combineGroups makes the state of each server that steps with others that of its group: a step takes as long as on the
// slowest, and all wait for each.
func (f *Candidates) combineGroups(states []order.DecodeState) {
	groups := f.groups()
	if len(groups) == 0 {
		return
	}
	for d := range f.Decode {
		at, is := slices.BinarySearchFunc(groups, f.Decode[d].Group, Group.compare)
		if !is {
			continue
		}
		state, own := &states[d], states[d].Step
		state.Running = groups[at].Running
		if state.Step = max(own, groups[at].Step); state.Step > own {
			state.PerToken = 0
		}
	}
}
