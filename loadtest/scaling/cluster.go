package scaling

import (
	"cmp"
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
	order    Order
	credit   float64 // overdue requests that may go
	now      float64

	prefill pods[*prefillServer]
	decode  pods[*decodeServer]
	queue   []*request  // that wait for a prefill server, in order of rank
	late    []*request  // likewise, but too late for their objective: only in byDeadline
	moving  []*sequence // prefilled, or nearly so: first is when
	waiting []*sequence // for KV room
	tokens  float64     // uncached ones of the queue
	account account
}

func newCluster(s *Scenario, p *Policy) *cluster {
	c := &cluster{scenario: s, convert: p.Convert, order: p.Order}
	c.prefill.make = func(readyAt float64) *prefillServer {
		return &prefillServer{pod: pod{readyAt: readyAt}, freeAt: readyAt, now: &c.now}
	}
	c.decode.make = func(readyAt float64) *decodeServer { return &decodeServer{pod: pod{readyAt: readyAt}} }
	return c
}

func (c *cluster) arrive(r *request) {
	at, _ := slices.BinarySearchFunc(c.queue, c.rank(r), func(q *request, rank float64) int {
		return cmp.Or(cmp.Compare(c.rank(q), rank), -1) // behind its equals
	})
	c.queue = slices.Insert(c.queue, at, r)
	c.tokens += float64(r.uncached)
}

// pass lets one tick pass.
func (c *cluster) pass() {
	end := c.now + tick
	c.putBack()
	c.bind(end)
	if c.convert {
		c.spill()
	}
	c.join(end)
	for _, d := range c.decode.all {
		d.pass(&c.scenario.Hardware, c.now, tick, c.account.ended)
	}
	c.prefill.pass(tick)
	c.decode.pass(tick)
	c.now = end
}

// ownPrefill is the time of a prefill with a server to itself.
func (c *cluster) ownPrefill(r *request) float64 {
	return float64(r.uncached) / c.scenario.Hardware.PrefillSpeed
}

// Order is in which order a gateway serves those who wait for prefill.
type Order int

const (
	Arrival  Order = iota // first come, first served, whether or not decode has room
	Aged                  // the shortest prefill less ageing x waited, as in loadtest/policy
	Deadline              // likewise, but those who missed their objective already go last
)

// Constants of loadtest/policy's order: of those who wait for longer than
// overdueAfter one in fifty turns is served first.
const (
	ageing       = 0.2
	overdueAfter = 20.0 // seconds
	overdueShare = 0.02
)

// rank orders the queue; it is the same at all times.
func (c *cluster) rank(r *request) float64 {
	if c.order == Arrival {
		return r.at
	}
	return c.ownPrefill(r) + ageing*r.at
}

// putBack moves those who are late behind everybody.
func (c *cluster) putBack() {
	if c.order != Deadline {
		return
	}
	c.queue = slices.DeleteFunc(c.queue, func(r *request) bool {
		late := c.now-r.at > c.scenario.Wait
		if late {
			c.late = append(c.late, r)
		}
		return late
	})
}

// next takes the request that goes next from the queue, nil if none does.
func (c *cluster) next() *request {
	if c.order == Arrival {
		return c.take(&c.queue, min(0, len(c.queue)-1))
	}
	if c.credit = min(1, c.credit+overdueShare); c.credit == 1 {
		for _, from := range []*[]*request{&c.late, &c.queue} {
			if at := oldest(*from); at >= 0 && c.now-(*from)[at].at > overdueAfter && c.roomiest((*from)[at]) != nil {
				c.credit = 0
				return c.take(from, at)
			}
		}
	}
	for _, from := range []*[]*request{&c.queue, &c.late} {
		for i := range min(len(*from), lookDepth) {
			if c.roomiest((*from)[i]) != nil {
				return c.take(from, i)
			}
		}
	}
	return nil
}

// oldest is the place in a queue of who came first, -1 if it is empty.
func oldest(queue []*request) int {
	oldest := -1
	for i, r := range queue {
		if oldest < 0 || r.at < queue[oldest].at {
			oldest = i
		}
	}
	return oldest
}

// bind gives the queue to prefill servers that are free before the tick ends. An
// ordered queue opens only when decode has room too.
func (c *cluster) bind(end float64) {
	for {
		free := c.free(end)
		if free == nil {
			return
		}
		r := c.next()
		if r == nil {
			return
		}
		free.freeAt = max(free.freeAt, r.at, c.now) + c.ownPrefill(r)
		s := &sequence{request: r, first: free.freeAt, produced: 1}
		if c.order != Arrival {
			s.server = c.roomiest(r)
			s.server.hold(r)
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

// roomiest is the decode server with most room, nil if not even that has enough. A
// gateway with an order of its own also keeps steps within the objective.
func (c *cluster) roomiest(r *request) *decodeServer {
	var best *decodeServer
	for _, d := range c.decode.all {
		if d.takes(c.now) && (best == nil || d.reserved < best.reserved) {
			best = d
		}
	}
	need := float64(r.prompt + r.output)
	if best == nil || best.reserved > 0 && best.reserved+need > c.scenario.Hardware.KV {
		return nil
	}
	if c.order != Arrival && best.held > 0 && best.step(&c.scenario.Hardware, r) > c.scenario.TPOT {
		return nil
	}
	return best
}

// take removes a request from a queue, nil for a negative place.
func (c *cluster) take(from *[]*request, i int) *request {
	if i < 0 {
		return nil
	}
	r := (*from)[i]
	*from = slices.Delete(*from, i, i+1)
	c.tokens -= float64(r.uncached)
	return r
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
		for i := 0; i < min(len(c.queue), lookDepth); i++ {
			r := c.queue[i]
			late := c.now - r.at + c.ownPrefill(r)/share
			room := float64(r.prompt+r.output) < spillBelow*c.scenario.Hardware.KV-d.reserved
			if c.now-r.at > spillAfter && late < c.scenario.Wait+c.ownPrefill(r) && room {
				c.take(&c.queue, i)
				d.prompt, d.left = r, c.ownPrefill(r)
				d.hold(r)
				break
			}
		}
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
			if s.server = c.roomiest(s.request); s.server == nil {
				return false
			}
			s.server.hold(s.request)
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
