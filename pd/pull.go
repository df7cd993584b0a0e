package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// setRemotes writes for each server that can pull from a third one which holds most of the
// prompt: any that is alive, also one that takes no request now.
func (sn *Snapshotter) setRemotes(r *bindRequest, v *snapshot, all []*pools.Server, now time.Time) {
	if sn.Locality == nil || r.prefix == nil {
		return
	}
	best := make(map[uint64]cost.Remote) // by class
	places := make(map[string]cost.Topology)
	for _, s := range all {
		at := sn.factsOf(s)
		if !at.pulls || s.State() != pools.Alive {
			continue
		}
		held := min(sn.Locality.cachedTokens(r.prefix, r.req.PromptTokens, s, &at).Confirmed(), r.req.PromptTokens)
		if held > best[s.CompatibilityKey()].Tokens {
			best[s.CompatibilityKey()] = cost.Remote{Server: s.ID(), Tokens: held}
			places[s.ID()] = topologyOf(s)
		}
	}
	offer := func(candidates []cost.Candidate, facts []serverFacts) {
		for i := range candidates {
			c := &candidates[i]
			c.Remote = cost.Remote{}
			from, known := best[c.Class]
			if !known || !facts[i].pulls || from.Tokens <= c.Cached.GPU {
				continue
			}
			place := places[from.Server]
			from.Latency, from.PerByte = sn.Links.Estimate(&place, &c.Topology, now)
			c.Remote = from
		}
	}
	offer(v.candidates.Prefill, v.prefillFacts)
	offer(v.candidates.Decode, v.decodeFacts)
}

// setPulls says what of the prompt's beginning the prefill server of a binding pulls: what a third
// server has in its cache, or the KV of an earlier answer; or what it fetches.
func (ch *Chooser) setPulls(r *bindRequest, v *snapshot, b *binding) {
	if v.handoff != nil {
		return
	}
	number := cost.IndexOf(v.candidates.Prefill, b.chosen.Prefill)
	c := &v.candidates.Prefill[number]
	if c.Remote.Fetched {
		ch.setFetch(r, v, b, c)
		return
	}
	from := ch.pullSource(v.candidates.Prefill, b.chosen.Prefill, r.req.PromptTokens)
	switch {
	case from == nil:
		b.setMeeting(r, v, number)
	case c.Remote.Answer:
		b.reads, b.readsTokens = r.prefix.answer, c.Remote.Tokens
	default:
		b.pullFrom = from
	}
}

// pullSource is the server from which the one that computes the prompt should pull its
// prefix, nil when computing it is as fast.
func (ch *Chooser) pullSource(candidates []cost.Candidate, id string, promptTokens int) *pools.Server {
	source := ch.Cost.PullSource(candidates, id, promptTokens)
	if source == "" {
		return nil
	}
	for _, s := range ch.Fleet.Servers() {
		if s.ID() == source {
			return s
		}
	}
	return nil // it has left
}
