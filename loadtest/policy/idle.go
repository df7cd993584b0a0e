package policy

import (
	"math"
	"slices"
)

// idleWait is the waiting for which there was no need: the seconds for which a request
// waited though a prefill server that could have begun it was idle. Waiting until the
// gateway binds a request counts against every idle server; waiting after that against those
// that were idle when it was bound and have been ever since, which is all that a choice can
// know, and only if its own server had work ahead then, by what its gateway knew: bound to
// an idle one it may still be overtaken by what another replica sends in the same moment.
type idleWait struct {
	waiting []*job
	idle    []bool // scratch: prefill servers
}

// begin lets a request count from its arrival.
func (w *idleWait) begin(j *job) {
	j.waits = true
	w.waiting = append(w.waiting, j)
}

// countIdle adds the time until the next event to those that wait without need.
func (c *cluster) countIdle(until float64) {
	w := &c.idleWait
	seconds := until - c.cal.now
	if seconds <= 0 || len(w.waiting) == 0 {
		return
	}
	w.waiting = slices.DeleteFunc(w.waiting, func(j *job) bool { return !j.waits })
	w.idle = w.idle[:0]
	for _, p := range c.prefills {
		w.idle = append(w.idle, c.isIdle(p))
	}
	for _, j := range w.waiting {
		j.keepIdle(w.idle)
		if c.couldBegin(j, w.idle) {
			j.idleWait += seconds
		}
	}
}

// keepIdle forgets the servers that are idle no more.
func (j *job) keepIdle(idle []bool) {
	j.idleSince = slices.DeleteFunc(j.idleSince, func(p int) bool { return !idle[p] })
}

// bindIdle notes which servers are idle as a request is bound.
func (c *cluster) bindIdle(j *job) {
	j.isBound = true
	if j.pair.Prefill != Aggregated && c.decider(j).account.prefill[j.pair.Prefill].work.Len() == 0 {
		return
	}
	for _, p := range c.prefills {
		if c.isIdle(p) {
			j.idleSince = append(j.idleSince, p.id)
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
func (c *cluster) couldBegin(j *job, idle []bool) bool {
	if j.req.Prompt < blockTokens {
		return false
	}
	has := func(p int) bool { return idle[p] && c.prefills[p].cache.room() >= len(j.req.Blocks) }
	if j.isBound {
		return slices.ContainsFunc(j.idleSince, has)
	}
	for p := range idle {
		if has(p) {
			return c.decodeHasRoom(j)
		}
	}
	return false
}

func (c *cluster) decodeHasRoom(j *job) bool {
	v := &c.decider(j).view
	v.now = c.cal.now
	for d := range v.Decodes() {
		if v.DecodeRequests(d) == 0 || v.DecodeCapacity()-v.DecodeUsed(d) >= j.req.Prompt {
			return true
		}
	}
	return false
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
