package policy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// optimum finds, by branch and bound, the schedule of a few requests with the least mean time to
// the first token: which prefill server computes which prompts, in which order, and which decode
// servers get them. It knows all arrivals and the true time of each prefill beforehand. Its costs
// are those of the simulator, never above: prompts are computed whole, one after the other, each
// finds what the prompts before it on its server share with it; transfers have the links to
// themselves; the first decode step has no other request in it; and of the fixed time of a step a
// prompt bears the share of the tokens that it fills. So no policy that sends every prompt to a
// prefill server, whole, is below it in the simulator.
type optimum struct {
	scenario *Scenario
	requests []*Request
	arrived  []float64
	noise    []float64
	common   [][]int // leading blocks that two prompts share

	least []float64 // of each request, at best: service and tail together
	free  []float64 // when each server has done what is in order
	order [][]int   // requests of each server
	done  []bool
	ready []float64 // when each prompt is computed

	best       float64 // sum of the times to the first token
	bestOrder  [][]int
	bestDecode []int
	decode     []int // scratch of assign
}

// schedule is what an optimum found.
type schedule struct {
	order  [][]int // requests of each prefill server
	decode []int   // of each request
	mean   float64 // time to the first token, in seconds
}

// solve returns the best schedule for the requests of a run.
func solve(c *cluster) schedule {
	o := newOptimum(c)
	o.search(0, 0, len(o.requests))
	return schedule{order: o.bestOrder, decode: o.bestDecode, mean: o.best / float64(len(o.requests))}
}

func newOptimum(c *cluster) *optimum {
	n := len(c.jobs)
	o := &optimum{
		scenario: c.scenario, best: math.Inf(1), least: make([]float64, n), done: make([]bool, n),
		ready: make([]float64, n), decode: make([]int, n),
		free: make([]float64, c.scenario.Prefill), order: make([][]int, c.scenario.Prefill),
	}
	for i := range c.jobs {
		j := &c.jobs[i]
		o.requests, o.arrived, o.noise = append(o.requests, j.req), append(o.arrived, j.arrived), append(o.noise, j.noise)
	}
	for i := range n {
		shared := make([]int, n)
		longest := 0
		for k := range n {
			if k != i {
				shared[k] = commonBlocks(o.requests[i].whole(), o.requests[k].whole())
				longest = max(longest, shared[k])
			}
		}
		o.common = append(o.common, shared)
		o.least[i] = o.service(i, longest) + o.tail(i, longest, o.scenario.Hardware.NIC)
	}
	return o
}

func commonBlocks(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// service is the time of a prefill of which so many blocks are cached.
func (o *optimum) service(i, cached int) float64 {
	h, r := &o.scenario.Hardware, o.requests[i]
	hit := min(cached*blockTokens, r.Prompt-1)
	return o.noise[i]*(h.PrefillBase+h.work(hit, r.Prompt)) + h.PrefillStep*float64(r.Prompt-hit)/float64(h.PrefillTokens)
}

// tail is the time from prefill's end to the first token, over a link, where decode has so many
// blocks.
func (o *optimum) tail(i, held int, link float64) float64 {
	h, r := &o.scenario.Hardware, o.requests[i]
	missing := r.Prompt - min(held*blockTokens, r.Prompt)
	return o.scenario.handOff() + float64(missing)*h.KVBytesPerToken/link + h.step(1, r.Prompt)
}

// tailBehind is tail on a decode server to which others came before, whose KV is there at some times: at once, or
// once it has what it pulls for one of them.
func (o *optimum) tailBehind(i, d int, link float64, before []int, there []float64) float64 {
	asked := o.ready[i] + o.scenario.handOff()
	at := func(pulls float64) float64 {
		held := 0
		for _, k := range before {
			if o.decode[k] == d && there[k] <= pulls {
				held = max(held, o.common[i][k])
			}
		}
		return pulls - asked + o.tail(i, held, link)
	}
	least := at(asked)
	for _, k := range before {
		if o.decode[k] == d && there[k] > asked {
			least = min(least, at(there[k]))
		}
	}
	return least
}

// link is the speed of the way from p to d.
func (o *optimum) link(p, d int) float64 {
	if o.scenario.prefillRack(p) == o.scenario.decodeRack(d) {
		return o.scenario.Hardware.NIC
	}
	return o.scenario.across()
}

// branch is a request that a server begins next.
type branch struct {
	request, server int
	start, end      float64
}

// search goes on with a schedule whose prefills begin in order of time: sum is of the times to
// the first token of those in it, at best, and left are not.
func (o *optimum) search(sum, last float64, left int) {
	if left == 0 {
		o.assign(sum)
		return
	}
	if sum+o.rest(last) >= o.best {
		return
	}
	for _, b := range o.branches(last) {
		server, before := b.server, o.free[b.server]
		o.free[server], o.ready[b.request], o.done[b.request] = b.end, b.end, true
		o.order[server] = append(o.order[server], b.request)
		longest := 0
		for _, shared := range o.common[b.request] {
			longest = max(longest, shared)
		}
		o.search(sum+b.end+o.tail(b.request, longest, o.scenario.Hardware.NIC)-o.arrived[b.request], b.start, left-1)
		o.order[server] = o.order[server][:len(o.order[server])-1]
		o.free[server], o.done[b.request] = before, false
	}
}

// rest is what those that have not begun take at least.
func (o *optimum) rest(last float64) float64 {
	soonest := max(last, slices.Min(o.free))
	sum := 0.0
	for i, done := range o.done {
		if !done {
			sum += max(soonest, o.arrived[i]+o.scenario.trip()) + o.least[i] - o.arrived[i]
		}
	}
	return sum
}

// branches are the prefills that may begin next and not before the last one did, those that end
// first in front. Of servers that are alike one is enough.
func (o *optimum) branches(last float64) []branch {
	var all []branch
	for p := range o.order {
		if o.alikeBefore(p) {
			continue
		}
		for i, done := range o.done {
			start := max(o.free[p], o.arrived[i]+o.scenario.trip())
			if done || start < last {
				continue
			}
			cached := 0
			for _, k := range o.order[p] {
				cached = max(cached, o.common[i][k])
			}
			all = append(all, branch{request: i, server: p, start: start, end: start + o.service(i, cached)})
		}
	}
	slices.SortFunc(all, func(a, b branch) int { return cmp.Compare(a.end, b.end) })
	return all
}

// alikeBefore reports whether a server has nothing to do, nor one before it in its rack.
func (o *optimum) alikeBefore(p int) bool {
	if len(o.order[p]) > 0 {
		return false
	}
	for q := range p {
		if len(o.order[q]) == 0 && o.scenario.prefillRack(q) == o.scenario.prefillRack(p) {
			return true
		}
	}
	return false
}

// assign chooses the decode servers for the order that was found, and keeps the schedule if it is
// the best so far. Sum is what it takes at best.
func (o *optimum) assign(sum float64) {
	if sum >= o.best {
		return
	}
	at := make([]int, len(o.requests)) // prefill servers
	for p, list := range o.order {
		for _, i := range list {
			at[i] = p
		}
	}
	inOrder := make([]int, len(o.requests)) // as they ask decode
	for i := range inOrder {
		inOrder[i] = i
	}
	slices.SortFunc(inOrder, func(a, b int) int { return cmp.Compare(o.ready[a], o.ready[b]) })
	there := make([]float64, len(o.requests))
	var try func(n int, sum float64)
	try = func(n int, sum float64) {
		if sum >= o.best {
			return
		}
		if n == len(inOrder) {
			o.best, o.bestDecode, o.bestOrder = sum, slices.Clone(o.decode), nil
			for _, list := range o.order {
				o.bestOrder = append(o.bestOrder, slices.Clone(list))
			}
			return
		}
		i := inOrder[n]
		longest := 0
		for _, shared := range o.common[i] {
			longest = max(longest, shared)
		}
		for d := range o.scenario.Decode {
			link := o.link(at[i], d)
			if longest == 0 && link < o.scenario.Hardware.NIC {
				continue // nothing is shared with anyone: a decode server of its rack is as good
			}
			tail := o.tailBehind(i, d, link, inOrder[:n], there)
			o.decode[i], there[i] = d, o.ready[i]+tail-o.scenario.Hardware.step(1, o.requests[i].Prompt)
			try(n+1, sum+tail-o.tail(i, longest, o.scenario.Hardware.NIC))
			if longest == 0 {
				return // the others of the rack are as good
			}
		}
	}
	try(0, sum)
}

// replay is a policy that does what a schedule says: a server gets its next prompt when it has
// done the one before.
func (s *schedule) replay() *Policy {
	return &Policy{
		Name: "optimum", Kind: Reference, OneDecider: true,
		Source: "the schedule of a branch and bound search that knows everything beforehand",
		New: func(*Scenario, *rand.Rand) any {
			return &script{schedule: s, next: make([]int, len(s.order)), jobs: make([]*job, len(s.decode))}
		},
	}
}

type script struct {
	*schedule
	next []int // of each server's order
	jobs []*job
}

func (s *script) Add(_ *View, j *job) { s.jobs[j.id] = j }

func (s *script) Next(*View) (*job, bool) {
	for p, list := range s.order {
		n := s.next[p]
		if n == len(list) || s.jobs[list[n]] == nil || (n > 0 && s.jobs[list[n-1]].prefilledAt == 0) {
			continue
		}
		j := s.jobs[list[n]]
		j.pair = Pair{Prefill: p, Decode: s.decode[j.id]}
		s.next[p]++
		return j, true
	}
	return nil, false
}

func (s *script) Wake(*View) (float64, bool) { return 0, false }
