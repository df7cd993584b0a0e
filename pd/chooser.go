package pd

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Chooser sees the servers as a choice does: it takes snapshots of them, prices a request
// on them, and claims those that are chosen. It knows nothing of waiting. Its fields are
// set once, before the first request.
type Chooser struct {
	Config   BindConfig
	Cost     cost.Model
	Links    *cost.Links
	Fleet    *pools.Fleet
	Locality *Locality // nil: nothing is known of who holds what
	Outputs  *Outputs  // nil: nothing is learned of how long answers are
	// Shares returns which hardware is to serve which requests of a base model, nil where
	// there is no plan. It must not wait. nil: there never is one.
	Shares  func(base string) *share.Table
	Metrics *Metrics

	firsts firstTokens // as they were promised, and came
	heat   heat        // of servers' caches
}

// binding is a chosen alternative with its servers claimed. prefill is nil
// when decode runs alone or the hand-off is there already.
type binding struct {
	chosen       cost.Alternative
	reason       string
	prefill      *pools.Lease
	decode       *pools.Lease
	handoff      *connector.Handoff
	pullFrom     *pools.Server // from which the prompt's beginning is pulled; nil: from none
	cachedTokens int           // tokens of the prompt that decode held beforehand
	refusedBy    string        // on error: who refused the claim
}

// bindNow picks the cheapest alternative that is left and claims its servers. A
// server that refuses the claim is left out and the choice made again.
func (ch *Chooser) bindNow(j *requestState) (binding, error) {
	refused := make(map[string]bool)
	anyway := false
	for {
		now := time.Now()
		view := ch.snapshotFor(j, refused, now)
		view.ignoreBreakers = anyway
		chosen, ok := ch.Cost.Choose(ch.demand(j, now), &view.field, rand.IntN)
		if !ok && len(j.broke) > 0 && !j.mayReturn {
			j.mayReturn = true // no other can take it, and whom it broke on may be well again
			continue
		}
		if !ok && len(refused) > 0 && !anyway {
			// Only servers under proof are left: one of them is better than none.
			anyway = true
			clear(refused)
			continue
		}
		if !ok {
			return binding{}, view.missing()
		}
		if ch.late(j, ch.firsts.by(&chosen.Terms), now) {
			return binding{}, ErrDeadline
		}
		a, err := ch.claim(j, &view, chosen)
		if err != nil {
			refused[a.refusedBy] = true
			continue
		}
		ch.recordBinding(j, &view, &a, now)
		return a, nil
	}
}

// claim takes a place on the servers of the alternative, on all or on none.
func (ch *Chooser) claim(j *requestState, v *snapshot, chosen cost.Alternative) (binding, error) {
	a := binding{chosen: chosen, handoff: v.handoff}
	if chosen.Prefill != "" {
		a.pullFrom = ch.pullSource(v.field.Prefill, chosen.Prefill, j.req.PromptTokens)
	} else {
		a.pullFrom = ch.pullSource(v.field.Decode, chosen.Decode, j.req.PromptTokens)
	}
	for i := range v.field.Decode {
		if d := &v.field.Decode[i]; d.ID == chosen.Decode {
			a.cachedTokens = d.Cached.GPU
		}
	}
	if chosen.Prefill != "" && v.handoff == nil {
		work := curve.Work{Tokens: j.req.PromptTokens, Estimate: chosen.Terms.Prefill}
		lease, err := v.prefill[cost.IndexOf(v.field.Prefill, chosen.Prefill)].Claim(pools.Prefill, work, v.ignoreBreakers || v.prefillPanic)
		if err != nil {
			return binding{refusedBy: chosen.Prefill}, err
		}
		a.prefill = lease
	}
	work := curve.Work{
		Tokens:   j.req.PromptTokens + j.req.OutputTokens/2, // on the average of its stay
		Estimate: time.Duration(j.req.OutputTokens) * chosen.Terms.Step,
	}
	lease, err := v.decode[cost.IndexOf(v.field.Decode, chosen.Decode)].Claim(pools.Decode, work, v.ignoreBreakers || v.decodePanic)
	if err != nil {
		a.release()
		return binding{refusedBy: chosen.Decode}, err
	}
	a.decode = lease
	if chosen.Prefill == "" && j.req.Dialect.Split {
		lease.Computes(curve.Work{Tokens: j.req.PromptTokens, Estimate: chosen.Terms.Prefill})
	}
	return a, nil
}

// recordBinding notes a request's servers and why they were chosen.
func (ch *Chooser) recordBinding(j *requestState, v *snapshot, a *binding, now time.Time) {
	ch.firsts.trials.note(j.base, now)
	if a.prefill != nil {
		j.leases = append(j.leases, a.prefill)
	}
	j.leases = append(j.leases, a.decode)
	ch.noteHits(j, v, a.chosen)
	a.reason = j.aloneReason(v, a.chosen)
	if a.chosen.Prefill == "" {
		ch.Metrics.alone.WithLabelValues(a.reason).Inc()
	}
	differ := ""
	if a.reason == NoPair {
		differ = v.differ(j.base)
	}
	field := v.field
	field.Prefill, field.Decode = slices.Clone(field.Prefill), slices.Clone(field.Decode)
	j.choices = append(j.choices, Choice{
		Demand: ch.demand(j, now), Field: field, Chosen: a.chosen, Reason: a.reason, Differ: differ,
		Panic: v.ignoreBreakers || v.prefillPanic || v.decodePanic,
	})
}

// demand is what the choice knows of a request.
func (ch *Chooser) demand(j *requestState, now time.Time) cost.Demand {
	d := cost.Demand{PromptTokens: j.req.PromptTokens, OutputTokens: j.req.OutputTokens, Waited: now.Sub(j.arrived)}
	d.TTFT, d.ITL = ch.Config.SLO(j.req, j.base)
	d.Objective = ch.Config.Objective.of(j.req, j.base)
	return d
}

// late reports whether a first token that is there in so long misses the request's
// deadline. What was tried already is not given up: its work would be lost.
func (ch *Chooser) late(j *requestState, first time.Duration, now time.Time) bool {
	if j.req.Deadline.IsZero() || len(j.tried) > 0 || j.continues {
		return false
	}
	return now.Add(first).After(j.req.Deadline) && !ch.takeProbe(j, now)
}

// takeProbe reports whether the request is served though it is predicted to be late.
func (ch *Chooser) takeProbe(j *requestState, now time.Time) bool {
	j.probe = j.probe || ch.firsts.trials.due(j.base, now)
	return j.probe
}

// release gives the places back.
func (a *binding) release() {
	if a.prefill != nil {
		a.prefill.Release()
	}
	if a.decode != nil {
		a.decode.Release()
	}
}

// predictCached notes where the prompt's KV will be, and returns what takes it back.
func (ch *Chooser) predictCached(j *requestState, servers ...*pools.Server) (withdraw func()) {
	if ch.Locality == nil || j.prefix == nil {
		return func() {}
	}
	return ch.Locality.dispatched(j.prefix, servers...)
}
