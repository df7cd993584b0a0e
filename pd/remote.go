package pd

import (
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// remote is a third server that holds more of a prompt than the one that is to compute
// it, and what the way between them costs: one more tier, beside the server's own CPU
// memory and disk. Its zero value is none.
type remote struct {
	server  *pools.Server
	tokens  int     // leading tokens of the prompt that it holds on its GPU
	latency float64 // seconds
	perByte float64 // likewise
}

// offerRemotes tells each server that can pull from a third one which holds most of the
// prompt: any that is alive, also one that takes no request now.
func (ch *Chooser) offerRemotes(j *requestState, v *snapshot, all []*pools.Server, now time.Time) {
	if ch.Locality == nil || j.prefix == nil {
		return
	}
	best := make(map[uint64]remote) // by class
	for _, s := range all {
		at := ch.factsOf(s)
		if !at.pulls || s.State() != pools.Alive {
			continue
		}
		held := min(ch.Locality.held(j.prefix, s, &at).GPU, j.req.PromptTokens)
		if held > best[s.Class()].tokens {
			best[s.Class()] = remote{server: s, tokens: held}
		}
	}
	offer := func(candidates []Candidate, seats []serverFacts) {
		for i := range candidates {
			c := &candidates[i]
			c.Remote = remote{}
			from, known := best[c.Class]
			if !known || !seats[i].pulls || from.tokens <= c.Cached.GPU {
				continue
			}
			place := placeOf(from.server)
			from.latency, from.perByte = ch.Links.Between(&place, &c.Place, now)
			c.Remote = from
		}
	}
	offer(v.field.Prefill, v.prefillFacts)
	offer(v.field.Decode, v.decodeFacts)
}

// pull is the seconds of a prefill whose prefix comes from the remote server first.
func (m *CostModel) pull(c *Candidate, w *work) float64 {
	bytes := float64((c.Remote.tokens - c.Cached.GPU) * m.KVBytesPerToken)
	return c.Remote.latency + bytes*c.Remote.perByte + w.behind(c.Remote.tokens).On(&c.Prefill)
}

// pulls reports whether pulling is faster than every other way to the prefix.
func (m *CostModel) pulls(c *Candidate, w *work) bool {
	return c.Remote.tokens > c.Cached.GPU && m.pull(c, w) <= m.prefill(c, w)
}

// prefix is the tokens that a prefill does not compute.
func (m *CostModel) prefix(c *Candidate, w *work) int {
	if m.pulls(c, w) {
		return c.Remote.tokens
	}
	return c.Cached.GPU
}

// source returns the server from which the one that computes the prompt should pull
// its prefix, nil when computing it is as fast.
func (m *CostModel) source(candidates []Candidate, id string, promptTokens int) *pools.Server {
	w := newWork(promptTokens)
	for i := range candidates {
		if c := &candidates[i]; c.ID == id && m.pulls(c, &w) {
			return c.Remote.server
		}
	}
	return nil
}
