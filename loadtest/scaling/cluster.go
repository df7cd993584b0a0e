package scaling

import (
	"slices"
)

// tick is the step of the model in seconds. Prefill is exact within it.
const tick = 0.25

// prefillServer computes one prompt at a time.
type prefillServer struct {
	pod
	freeAt float64
	now    *float64
}

func (p *prefillServer) base() *pod { return &p.pod }

// busy is the work on the server in seconds; before it is ready there is none.
func (p *prefillServer) busy() float64 { return max(0, p.freeAt-max(*p.now, p.readyAt)) }

// cluster is both pools behind one gateway that binds a request when a server is
// free for it.
type cluster struct {
	scenario *Scenario
	convert  bool // decode servers take prompts when the others are busy
	now      float64

	prefill pods[*prefillServer]
	decode  pods[*decodeServer]
	queue   *queue      // that wait for a prefill server
	moving  []*sequence // prefilled, or nearly so: first is when
	waiting []*sequence // for KV room
	account account
}

func newCluster(s *Scenario, p *Policy) *cluster {
	c := &cluster{scenario: s, convert: p.Convert, queue: newQueue(p.Objective, s.Wait)}
	c.prefill.make = func(readyAt float64) *prefillServer {
		return &prefillServer{pod: pod{readyAt: readyAt}, freeAt: readyAt, now: &c.now}
	}
	c.decode.make = func(readyAt float64) *decodeServer { return &decodeServer{pod: pod{readyAt: readyAt}} }
	return c
}

func (c *cluster) arrive(r *request) { c.queue.add(r, c.ownPrefill(r)) }

// pass lets one tick pass.
func (c *cluster) pass() {
	end := c.now + tick
	c.bind(end)
	if c.convert {
		c.spill()
	}
	c.join(end)
	for _, d := range c.decode.all {
		d.pass(&c.scenario.Hardware, c.now, tick, c.account.recordEnd)
	}
	c.prefill.pass(tick)
	c.decode.pass(tick)
	c.now = end
}

// ownPrefill is the time of a prefill with a server to itself.
func (c *cluster) ownPrefill(r *request) float64 {
	return float64(r.uncached) / c.scenario.Hardware.PrefillSpeed
}

// bind gives the queue to prefill servers that are free before the tick ends. An
// ordered queue opens only when decode has room too.
func (c *cluster) bind(end float64) {
	for {
		free := c.free(end)
		if free == nil {
			return
		}
		var to *decodeServer
		if c.queue.ordered() {
			to = c.emptiest()
		}
		r := c.queue.serve(c.now, func(r *request) bool { return !c.queue.ordered() || c.hasRoom(to, r) })
		if r == nil {
			return
		}
		free.freeAt = max(free.freeAt, r.at, c.now) + c.ownPrefill(r)
		s := &sequence{request: r, first: free.freeAt, produced: 1}
		if to != nil {
			s.server = to
			to.hold(r)
		}
		c.moving = append(c.moving, s)
	}
}

// free is the prefill server that is free first, nil if none is before the end.
func (c *cluster) free(end float64) *prefillServer {
	var free *prefillServer
	for _, p := range c.prefill.all {
		if !p.draining && p.freeAt < end && (free == nil || p.freeAt < free.freeAt) {
			free = p
		}
	}
	return free
}

// emptiest is the decode server with most room, nil if none is up.
func (c *cluster) emptiest() *decodeServer {
	var best *decodeServer
	for _, d := range c.decode.all {
		if d.takes(c.now) && (best == nil || d.reserved < best.reserved) {
			best = d
		}
	}
	return best
}

// hasRoom reports whether a decode server, which may be nil, has room for a request. A
// gateway with an order of its own also keeps steps within the objective.
func (c *cluster) hasRoom(d *decodeServer, r *request) bool {
	if d == nil || d.reserved > 0 && d.reserved+float64(r.prompt+r.output) > c.scenario.Hardware.KV {
		return false
	}
	return !c.queue.ordered() || d.held == 0 || d.step(&c.scenario.Hardware, r) <= c.scenario.TPOT
}

// lookDepth is how many of the queue are looked at, from its head.
const lookDepth = 32

// A request that has waited for spillAfter seconds goes to a decode server that is
// filled up to spillBelow, if it would still be in time there and its steps are
// well within their objective: they take longer beside a prompt.
const (
	spillAfter = 1.0
	spillBelow = 0.85
	spillSteps = 0.8
)

// spill gives requests that wait to decode servers, which compute them whole.
func (c *cluster) spill() {
	for _, d := range c.decode.all {
		if d.prompt != nil || !d.takes(c.now) || c.scenario.Hardware.step(float64(d.held), d.contexts) > spillSteps*c.scenario.TPOT {
			continue
		}
		c.queue.each(lookDepth, func(r *request) bool {
			late := c.now - r.at + c.ownPrefill(r)/share
			room := float64(r.prompt+r.output) < spillBelow*c.scenario.Hardware.KV-d.reserved
			if c.now-r.at <= spillAfter || late >= c.scenario.Wait+c.ownPrefill(r) || !room {
				return false
			}
			d.prompt, d.left = r, c.ownPrefill(r)
			d.hold(r)
			return true
		})
	}
}

// join brings prefilled sequences to their decode server, or to the one with most
// room. Those that find none wait, and their first token with them.
func (c *cluster) join(end float64) {
	c.moving = slices.DeleteFunc(c.moving, func(s *sequence) bool {
		if s.first < end {
			c.waiting = append(c.waiting, s)
		}
		return s.first < end
	})
	c.waiting = slices.DeleteFunc(c.waiting, func(s *sequence) bool {
		if s.server == nil {
			to := c.emptiest()
			if !c.hasRoom(to, s.request) {
				return false
			}
			s.server = to
			to.hold(s.request)
		}
		s.first = max(s.first, c.now)
		s.server.batch = append(s.server.batch, s)
		return true
	})
}

// kv is the tokens on decode servers.
func (c *cluster) kv() float64 {
	sum := 0.0
	for _, d := range c.decode.all {
		sum += d.reserved
	}
	return sum
}

// inDecode is the number of requests on decode servers or waiting for them.
func (c *cluster) inDecode() int {
	n := len(c.waiting)
	for _, d := range c.decode.all {
		n += len(d.batch)
	}
	return n
}
