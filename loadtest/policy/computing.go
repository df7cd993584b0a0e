package policy

// computing is what the servers were sent by this gateway and have not published: of later requests
// with the same beginning it counts as cached, as the gateway's own index guesses, since they stand
// behind it in that server's queue. What is sent in pieces counts whole: the rest follows.
type computing struct {
	copies   []uint16           // by block, and by server: requests that it was sent for
	prefills int                // servers
	servers  int                // these, and the decode servers behind them
	ended    []endedComputation // in order of time
}

// endedComputation is a prompt, or a piece of it, that was computed: its events are there by a time.
type endedComputation struct {
	at     float64
	server int
	blocks []int32
}

// newComputing returns one of so many servers, for blocks whose ids are below known.
func newComputing(prefills, decodes, known int) *computing {
	servers := prefills + decodes
	return &computing{copies: make([]uint16, servers*known), prefills: prefills, servers: servers}
}

// at is where the copies of a block that a server was sent are counted.
func (c *computing) at(server int, block int32) int { return int(block)*c.servers + server }

// serverOf is the server that computes a request's prompt.
func (c *computing) serverOf(j *job) int {
	if j.pair.Prefill == Aggregated {
		return c.prefills + j.pair.Decode
	}
	return j.pair.Prefill
}

// begin counts what a request, or a piece of it, lets its server compute.
func (c *computing) begin(j *job) {
	for _, b := range j.req.wholeUpTo(j.req.Prompt) {
		c.copies[c.at(c.serverOf(j), b)]++
	}
}

// end is called when that was computed, with the time at which its events have come.
func (c *computing) end(j *job, at float64) {
	c.ended = append(c.ended, endedComputation{at: at, server: c.serverOf(j), blocks: j.req.wholeUpTo(j.req.Prompt)})
}

// extend adds to the leading blocks that servers hold those that they compute.
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
		c.copies[c.at(e.server, b)]--
	}
}
