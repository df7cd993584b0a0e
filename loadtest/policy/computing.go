package policy

// computing is what the prefill servers were sent by this gateway and have not published: of
// later requests with the same beginning it counts as cached, as the gateway's own index
// guesses, since they stand behind it in that server's queue.
type computing struct {
	copies map[sentBlock]int
	ended  []endedComputation // in order of time
}

// sentBlock is a block of a prompt that a prefill server was sent.
type sentBlock struct {
	prefill int
	block   int32
}

// endedComputation is a prompt that was computed: its events are there by a time.
type endedComputation struct {
	at      float64
	prefill int
	blocks  []int32
}

func newComputing() *computing { return &computing{copies: make(map[sentBlock]int)} }

// begin counts what a request, or a piece of it, lets its prefill server compute.
func (c *computing) begin(j *job) {
	for _, b := range j.whole() {
		c.copies[sentBlock{j.pair.Prefill, b}]++
	}
}

// end is called when that was computed, with the time at which its events have come.
func (c *computing) end(j *job, at float64) {
	c.ended = append(c.ended, endedComputation{at: at, prefill: j.pair.Prefill, blocks: j.whole()})
}

// extend adds to the leading blocks that prefill servers hold those that they compute.
func (c *computing) extend(blocks []int32, held []int, now float64) {
	for len(c.ended) > 0 && c.ended[0].at <= now {
		c.forget(&c.ended[0])
		c.ended = c.ended[1:]
	}
	for p := range held {
		for held[p] < len(blocks) && c.copies[sentBlock{p, blocks[held[p]]}] > 0 {
			held[p]++
		}
	}
}

func (c *computing) forget(e *endedComputation) {
	for _, b := range e.blocks {
		key := sentBlock{e.prefill, b}
		if c.copies[key]--; c.copies[key] == 0 {
			delete(c.copies, key)
		}
	}
}
