package policy

import (
	"math"
	"slices"

	"github.com/tandem-gateway/tandem/pools/kvroom"
)

// idleWait is the waiting for which there was no need: the seconds for which a request
// waited though a prefill server that could have begun it was idle. Waiting until the
// gateway binds a request counts against every idle server; waiting after that against those
// that were idle when it was bound and have been ever since, which is all that a choice can
// know, and only if its own server had work ahead then, by what its gateway knew: bound to
// an idle one it may still be overtaken by what another replica sends in the same moment.
type idleWait struct {
	waiting []*job
	spells  []int // by prefill server: how many times it was looked at and not idle

	idle       []bool // scratch: prefill servers
	mostBlocks int    // scratch: the most KV room, in blocks, of an idle one
	mostTokens []int  // scratch: by gateway, the most KV room, in tokens, that it knows of on decode
}

// idleSpell is the time for which a prefill server stays idle.
type idleSpell struct{ prefill, spell int }

// begin lets a request count from its arrival.
func (w *idleWait) begin(j *job) {
	j.waits, j.waitsAt = true, len(w.waiting)
	w.waiting = append(w.waiting, j)
}

// end is called when its prefill begins.
func (w *idleWait) end(j *job) {
	if !j.waits {
		return
	}
	last := len(w.waiting) - 1
	w.waiting[j.waitsAt] = w.waiting[last]
	w.waiting[j.waitsAt].waitsAt = j.waitsAt
	w.waiting = w.waiting[:last]
	j.waits = false
}

// countIdle adds the time until the next event to those that wait without need.
func (c *cluster) countIdle(until float64) {
	w := &c.idleWait
	seconds := until - c.cal.now
	if seconds <= 0 || len(w.waiting) == 0 {
		return
	}
	if !c.lookForIdle() {
		return
	}
	c.lookForRoom()
	for _, j := range w.waiting {
		if c.couldBegin(j) {
			j.idleWait += seconds
		}
	}
}

// lookForIdle notes which prefill servers are idle, and reports whether any is.
func (c *cluster) lookForIdle() (anyIdle bool) {
	w := &c.idleWait
	w.idle = w.idle[:0]
	for _, p := range c.prefills {
		idle := c.isIdle(p)
		if !idle {
			w.spells[p.id]++
		}
		w.idle = append(w.idle, idle)
		anyIdle = anyIdle || idle
	}
	return anyIdle
}

// bindIdle notes which servers are idle as a gateway binds a request.
func (c *cluster) bindIdle(by *gateway, j *job) {
	j.isBound = true
	if j.pair.Prefill != Aggregated && by.account.prefill[j.pair.Prefill].work.Len() == 0 {
		return
	}
	for _, p := range c.prefills {
		if c.isIdle(p) {
			j.idleSince = append(j.idleSince, idleSpell{p.id, c.idleWait.spells[p.id]})
		}
	}
}

// isIdle reports whether a prefill server has nothing to do, and nothing is on its way to it.
func (c *cluster) isIdle(p *prefillServer) bool {
	if p.busy || len(p.waiting)+len(p.begun) > 0 {
		return false
	}
	return !slices.ContainsFunc(c.gateways, func(g *gateway) bool { return g.account.prefill[p.id].work.Len() > 0 })
}

// couldBegin reports whether a request could begin on an idle server: where it has KV room
// for the prompt, and, unless the request is bound, decode has by what its gateway knows.
// Less than a block cannot be handed over.
func (c *cluster) couldBegin(j *job) bool {
	if j.req.Prompt < blockTokens {
		return false
	}
	w := &c.idleWait
	if len(j.req.Blocks) > w.mostBlocks {
		return false
	}
	if !j.isBound {
		return j.req.Prompt <= w.mostTokens[c.decider(j).id]
	}
	return slices.ContainsFunc(j.idleSince, func(s idleSpell) bool {
		return w.idle[s.prefill] && s.spell == w.spells[s.prefill] && c.prefills[s.prefill].cache.room() >= len(j.req.Blocks)
	})
}

// lookForRoom notes how much KV room there is for those that wait.
func (c *cluster) lookForRoom() {
	w := &c.idleWait
	w.mostBlocks, w.mostTokens = 0, w.mostTokens[:0]
	for p, idle := range w.idle {
		if idle {
			w.mostBlocks = max(w.mostBlocks, c.prefills[p].cache.room())
		}
	}
	for _, g := range c.gateways {
		g.view.now = c.cal.now
		w.mostTokens = append(w.mostTokens, g.view.mostDecodeRoom())
	}
}

// mostDecodeRoom is the most KV tokens that a decode server is believed to have room for at least, if its requests share
// none; an empty one takes anything.
func (v *View) mostDecodeRoom() int {
	most := 0
	for d := range v.Decodes() {
		if v.DecodeRequests(d) == 0 {
			return math.MaxInt
		}
		most = max(most, int(kvroom.Given(float64(v.DecodeCapacity())))-v.DecodeUsed(d))
	}
	return most
}

// idleAllowed is the most seconds for which a request may wait so. Package order allows the
// predicted time to the first token on the server that is free. Here it is three times that
// of the slowest server, which holds nothing of the prompt, and of the slowest link, since
// prefills are noisy and links shared (more than three times where three sigma of the noise
// are more), and two seconds more for what travels between replicas.
func (c *cluster) idleAllowed(j *job) float64 {
	prefill, link := 0.0, c.scenario.across()
	for _, p := range c.prefills {
		prefill = max(prefill, p.speed*p.hw.prefill(j.req.Prompt, 0))
	}
	for _, sick := range c.scenario.SlowNICs {
		link = min(link, sick.Factor*c.hw.NIC)
	}
	return 2 + max(3, math.Exp(3*c.scenario.Noise))*(prefill+float64(j.req.Prompt)*c.hw.KVBytesPerToken/link)
}
