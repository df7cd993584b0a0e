package policy

import "math"

var foresight = &Policy{
	Name: "tandem-pieces-foresight", Kind: Reference, OneDecider: true, Foresight: true,
	Source: "tandem-pieces on engines whose caches know the requests to come, and evict first what is used again last: what hints of which blocks to keep could give at most (Belady, 1966)",
	New:    pieces.New,
}

// uses is when each block is used next, from the requests that are still to come.
type uses struct {
	jobs  []job
	has   [][]int32         // by block, the requests with it, in order of arrival
	ended func(j *job) bool // a request uses its blocks no more
}

func newUses(jobs []job, blocks int, ended func(j *job) bool) *uses {
	u := &uses{jobs: jobs, has: make([][]int32, blocks), ended: ended}
	for i := range jobs {
		for _, b := range jobs[i].req.whole() {
			u.has[b] = append(u.has[b], int32(i))
		}
	}
	return u
}

// next is when the next request with a block arrives, or has arrived; infinite: there is none.
func (u *uses) next(block int32) float64 {
	for len(u.has[block]) > 0 {
		if j := &u.jobs[u.has[block][0]]; !u.ended(j) {
			return j.arrived
		}
		u.has[block] = u.has[block][1:]
	}
	return math.Inf(1)
}

// foresee lets the caches of all servers know the requests of the run.
func (c *cluster) foresee() {
	decoded := func(j *job) bool { return j.decodedAt > 0 }
	prefill := newUses(c.jobs, c.blocks, func(j *job) bool { return j.prefilledAt > 0 || decoded(j) })
	decode := newUses(c.jobs, c.blocks, decoded)
	for _, p := range c.prefills {
		p.cache.nextUse = prefill.next
	}
	for _, d := range c.decodes {
		d.cache.nextUse = decode.next
	}
}
