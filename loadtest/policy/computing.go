package policy

// computing is what the prefill servers were sent by this gateway and have not published: of
// later requests with the same beginning it counts as cached, as the gateway's own index
// guesses, since they stand behind it in that server's queue.
type computing struct {
	copies  []uint16           // by block, and by prefill server: requests that it was sent for
	servers int                // prefill servers
	ended   []endedComputation // in order of time
}

// endedComputation is a prompt that was computed: its events are there by a time.
type endedComputation struct {
	at      float64
	prefill int
	blocks  []int32
}

// newComputing returns one of so many prefill servers, for blocks whose ids are below known.
func newComputing(servers, known int) *computing {
	return &computing{copies: make([]uint16, servers*known), servers: servers}
}

// at is where the copies of a block that a prefill server was sent are counted.
func (c *computing) at(prefill int, block int32) int { return int(block)*c.servers + prefill }

// begin counts what a request, or a piece of it, lets its prefill server compute.
func (c *computing) begin(j *job) {
	for _, b := range j.whole() {
		c.copies[c.at(j.pair.Prefill, b)]++
	}
}

// end is called when that was computed up to a token, with the time at which its events have come.
func (c *computing) end(j *job, upTo int, at float64) {
	c.ended = append(c.ended, endedComputation{at: at, prefill: j.pair.Prefill, blocks: j.req.wholeUpTo(upTo)})
}

// extend adds to the leading blocks that prefill servers hold those that they compute.
func (c *computing) extend(blocks []int32, held []int, now float64) {
	for len(c.ended) > 0 && c.ended[0].at <= now {
		c.forget(&c.ended[0])
		c.ended = c.ended[1:]
	}
	for p := range held {
		for held[p] < len(blocks) && c.copies[c.at(p, blocks[held[p]])] > 0 {
			held[p]++
		}
	}
}

func (c *computing) forget(e *endedComputation) {
	for _, b := range e.blocks {
		c.copies[c.at(e.prefill, b)]--
	}
}
