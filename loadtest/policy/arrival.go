package policy

import (
	"math/rand/v2"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/order"
)

var arrival = &Policy{
	Name: "tandem-arrival", Kind: Ours,
	Source: "the pair with the least predicted time to the first token, and to the requests that wait behind, chosen on arrival",
	New:    func(s *Scenario, rng *rand.Rand) any { return &joint{fleet: newFleet(s, true), rng: rng} },
}

var arrivalKey = &Policy{
	Name: "tandem-key", Kind: Ours,
	Source: "tandem-arrival, with prefill engines that schedule by priority: arrival + predicted prefill / ageing",
	New:    func(s *Scenario, rng *rand.Rand) any { return &keyed{joint{fleet: newFleet(s, true), rng: rng}} },
}

// ByRule is the gateway bound on arrival under one of its rules (--policy), where decode
// servers compute prompts only if no pair can: what is compared with running processes.
func ByRule(rule cost.Rule) *Policy {
	return &Policy{
		Name: "gateway-" + string(rule), Kind: Ours, Source: "cost.Rule: the gateway's own --policy " + string(rule),
		New: func(s *Scenario, rng *rand.Rand) any {
			j := &joint{fleet: newFleet(s, false), rng: rng}
			j.model.Rule = rule
			return j
		},
	}
}

// joint binds on arrival, by the gateway's code.
type joint struct {
	*fleet
	rng *rand.Rand
}

// Choose is cost.Model.Choose: decode room is a cost here, not a condition, since there
// is nowhere to wait.
func (c *joint) Choose(v *View) Pair {
	c.refresh(v)
	c.updateCached(v, v.job)
	chosen, ok := c.model.Choose(c.demand(v), &c.field, c.rng.IntN)
	if !ok {
		panic("no alternative in a field that has servers")
	}
	pair := Pair{Prefill: Aggregated, Decode: serverNumber(chosen.Decode)}
	if chosen.Prefill != "" {
		pair.Prefill = serverNumber(chosen.Prefill)
	}
	return pair
}

// keyed adds the static order of service.
type keyed struct{ joint }

// Key ages linearly, which makes it static.
func (k *keyed) Key(v *View, chosen Pair) float64 {
	if chosen.Prefill == Aggregated {
		return 0
	}
	return v.job.arrived + v.PrefillSeconds(chosen.Prefill)/order.DefaultConfig().Ageing
}
