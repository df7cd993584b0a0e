package policy

import (
	"math"
	"math/rand/v2"
)

var arrival = &Policy{
	Name: "tandem-arrival", Kind: Ours,
	Source: "the pair with the least predicted time to the first token, and to those who wait behind, chosen on arrival",
	New:    func(s *Scenario, _ *rand.Rand) any { return &joint{fleet: newFleet(s, true)} },
}

var arrivalKey = &Policy{
	Name: "tandem-key", Kind: Ours,
	Source: "tandem-arrival, with prefill engines that schedule by priority: arrival + predicted prefill / ageing",
	New:    func(s *Scenario, _ *rand.Rand) any { return &keyed{joint{fleet: newFleet(s, true)}} },
}

// joint binds on arrival.
type joint struct{ *fleet }

// Choose is Servers.Best. Decode room is a cost here, not a condition: there is
// nowhere to wait. A second of prefill is priced at itself, for those yet to come,
// and twice for each request that waits per prefill server.
func (c *joint) Choose(v *View) Pair {
	c.look(v)
	waiting := 0
	for p := range c.servers.Prefill {
		waiting += max(0, c.servers.Prefill[p].Queued-1)
	}
	price := 1 + 2*float64(waiting)/float64(len(c.servers.Prefill))
	for d := range c.servers.Decode {
		c.servers.Decode[d].Seconds += v.RoomSeconds(d)
		c.servers.Decode[d].Room = math.MaxInt
	}
	pair, _ := c.servers.Best(c.ticket(v, v.job), price)
	return pair
}

// keyed adds the static order of service.
type keyed struct{ joint }

// Key ages linearly, which makes it static.
func (k *keyed) Key(v *View, chosen Pair) float64 {
	if chosen.Prefill == Alone {
		return 0
	}
	return v.job.arrived + v.PrefillSeconds(chosen.Prefill)/DefaultOrder().Ageing
}
