package policy

import "math"

// ttftBound is a mean time to the first token, in seconds, that no policy is below on a run's
// requests, whatever it knows and wherever it sends them: each request is alone on the fastest
// server, never waits, and its transfer takes no time, as where decode pulls each piece while the
// next is computed. KV that came before is found as far as the caches of all servers together have
// room to keep it until it is used again.
func (c *cluster) ttftBound() float64 {
	perToken, perSquare := c.leastWork()
	work := func(from, to int) float64 {
		a, b := float64(from), float64(to)
		return perToken*(b-a) + perSquare*(b*b-a*a)
	}
	sum := 0.0
	var uses []reuse
	last := make(map[int32]float64) // when a block was used last
	for i := range c.jobs {
		j := &c.jobs[i]
		sum += c.leastTail(j) + j.noise*work(0, j.req.Prompt)
		known := true // so are all blocks before it
		for k, block := range j.req.whole() {
			before, is := last[block]
			last[block] = j.arrived
			if known = known && is; known {
				to := min((k+1)*blockTokens, j.req.Prompt-1)
				uses = append(uses, reuse{kept: j.arrived - before, saved: j.noise * work(k*blockTokens, to)})
			}
		}
	}
	span := c.jobs[len(c.jobs)-1].arrived - c.jobs[0].arrived
	return (sum - mostSaved(uses, c.cacheBlocks()*span)) / float64(len(c.jobs))
}

// leastWork is the seconds per token, and per token attended to, of the fastest server.
func (c *cluster) leastWork() (perToken, perSquare float64) {
	perToken, perSquare = c.hw.PrefillPerToken/c.hw.PrefillRate, c.hw.PrefillPerSquare/c.hw.PrefillRate // of decode servers
	for _, p := range c.prefills {
		perToken = min(perToken, p.speed*p.hw.PrefillPerToken/p.hw.PrefillRate)
		perSquare = min(perSquare, p.speed*p.hw.PrefillPerSquare/p.hw.PrefillRate)
	}
	return perToken, perSquare
}

// leastTail is what a request takes beside the work of its prefill: by a pair of servers, or a decode
// server that computes it in one step.
func (c *cluster) leastTail(j *job) float64 {
	step := c.hw.step(1, j.req.Prompt)
	pair := c.hw.PrefillStep + c.scenario.handOff() + step
	if c.scenario.saysFirst(j.req) {
		pair = c.hw.PrefillStep
	}
	return 2*c.scenario.trip() + min(pair, step)
}

// cacheBlocks is the KV memory of all servers, in blocks.
func (c *cluster) cacheBlocks() (blocks float64) {
	for _, p := range c.prefills {
		blocks += float64(p.cache.capacity)
	}
	for _, d := range c.decodes {
		blocks += float64(d.cache.capacity)
	}
	return blocks
}

// reuse is a block that came before: the seconds for which it must be kept for that, and of prefill
// that it saves.
type reuse struct{ kept, saved float64 }

// mostSaved is more than can be saved with so many seconds of blocks. With any price of a second of
// a block (weak duality of the packing of intervals) no choice saves more than the room is worth and
// what each reuse saves beyond its price; the best price is searched for.
func mostSaved(uses []reuse, room float64) float64 {
	at := func(price float64) float64 {
		sum := price * room
		for _, u := range uses {
			sum += max(0, u.saved-price*u.kept)
		}
		return sum
	}
	least := at(0)
	low, high := math.Log(1e-9), math.Log(1) // seconds for a second of a block
	for range 60 {                           // the sum is convex in the price
		a, b := low+(high-low)/3, high-(high-low)/3
		if at(math.Exp(a)) < at(math.Exp(b)) {
			high = b
		} else {
			low = a
		}
	}
	return min(least, at(math.Exp(low)))
}
