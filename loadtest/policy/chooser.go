package policy

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

var gatewayChooser = &Policy{
	Name: "tandem", Kind: Ours,
	Source: "pd.CostModel.Choose with links learned by pd.Links: the gateway's own code",
	New:    func(s *Scenario, rng *rand.Rand) any { return newPairChooser(s, rng) },
}

// pairChooser asks the gateway's own chooser. Nothing else in this package imports
// the gateway.
type pairChooser struct {
	model pd.CostModel
	links *pd.Links
	field pd.Field
	rng   *rand.Rand
}

func newPairChooser(s *Scenario, rng *rand.Rand) *pairChooser {
	h := &s.Hardware
	c := &pairChooser{rng: rng, model: pd.CostModel{
		HandOff:         virtual(h.HandOff),
		BlockTokens:     blockTokens,
		KVBytesPerToken: int(h.KVBytesPerToken),
		Reference:       prefillCurve(h, 1),
		DecodeReuse:     true,
	}}
	c.links = pd.NewLinks(pd.LinkPrior{
		pd.SameHost: {BytesPerSecond: h.NIC},
		pd.SameRack: {BytesPerSecond: h.NIC},
		pd.SameZone: {BytesPerSecond: min(h.NIC, s.uplink())},
		pd.Far:      {BytesPerSecond: min(h.NIC, s.uplink())},
	})
	for p := range s.Prefill {
		c.field.Prefill = append(c.field.Prefill, pd.Candidate{ID: strconv.Itoa(p), Place: place(s.prefillRack(p))})
	}
	for d := range s.Decode {
		c.field.Decode = append(c.field.Decode, pd.Candidate{
			ID: strconv.Itoa(d), Place: place(s.decodeRack(d)), KVKnown: true,
			Prefill: prefillCurve(h, 1),
			Step:    pools.Curve{h.DecodeBase, h.DecodePerSequence, 1e6 * h.DecodePerContext},
		})
	}
	return c
}

func place(rack int) pd.Place { return pd.Place{Zone: "z", Rack: strconv.Itoa(rack)} }

// prefillCurve is the hardware's prefill in the features of pools.PrefillFeatures.
func prefillCurve(h *Hardware, speed float64) pools.Curve {
	return pools.Curve{
		speed * (h.PrefillBase + h.PrefillStep),
		speed * 1e3 * h.PrefillPerToken / h.PrefillRate,
		speed * 1e6 * h.PrefillPerSquare / h.PrefillRate,
	}
}

func (c *pairChooser) Choose(v *View) Pair {
	for p := range c.field.Prefill {
		f := &c.field.Prefill[p]
		f.Queue, f.Queued = virtual(v.QueueSeconds(p)), v.PrefillRequests(p)
		f.Cached = kvstate.Held{GPU: v.PrefillHit(p)}
		f.Prefill = prefillCurve(v.hardware(), v.gateway.learned.speeds[p].mean())
	}
	for d := range c.field.Decode {
		f := &c.field.Decode[d]
		f.Running, f.KVUsed, f.Waiting = v.DecodeRequests(d), v.DecodeContext(d), v.DecodeGauge(d).Waiting
		f.KVFree = v.DecodeCapacity() - v.DecodeUsed(d)
		f.Cached = kvstate.Held{GPU: v.DecodeHit(d)}
	}
	c.field.Alone = c.field.Alone[:0]
	for d := range c.field.Decode {
		if v.StallSeconds(d) <= v.scenario().SLO.ITL {
			c.field.Alone = append(c.field.Alone, c.field.Decode[d])
		}
	}
	c.field.Links = c.links.View(wall(v.now))
	a, ok := c.model.Choose(pd.Demand{PromptTokens: v.Prompt(), OutputTokens: v.Output()}, c.field, c.rng.IntN)
	if !ok {
		panic("no alternative in a field that has servers")
	}
	chosen := Pair{Prefill: Alone, Decode: number(a.Decode)}
	if a.Prefill != "" {
		chosen.Prefill = number(a.Prefill)
	}
	return chosen
}

// Prefilled is of no interest to the links.
func (c *pairChooser) Prefilled(*View, *job) {}

// Transferred teaches the links. A transfer that had to wait for room says nothing
// of them.
func (c *pairChooser) Transferred(v *View, j *job, seconds float64) {
	if j.estimate.room {
		return
	}
	c.links.Observe(&c.field.Prefill[j.pair.Prefill], &c.field.Decode[j.pair.Decode], j.estimate.bytes, virtual(seconds), wall(v.now))
}

// wall is a time of the run as a clock would tell it.
func wall(seconds float64) time.Time { return time.Unix(0, int64(virtual(seconds))) }

// number reads a server's ID, which this file wrote.
func number(id string) int {
	n, err := strconv.Atoi(id)
	if err != nil {
		panic(err)
	}
	return n
}
