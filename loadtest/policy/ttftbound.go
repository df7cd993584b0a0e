package policy

import (
	"fmt"
	"math"
	"slices"
)

// ttftParts is what a mean time to the first token is made of, in seconds.
type ttftParts struct {
	Wait   float64 // before the first step of the prefill, and between its pieces
	Fresh  float64 // prefill of what no earlier request had
	Again  float64 // and of what an earlier one had
	Beside float64 // of the prefill: the fixed time of steps, other prompts and streams in the same steps, slower servers
	Move   float64 // round trips, hand-off, transfer, and the wait for decode's next step
	Step   float64 // first decode step, of a batch of one
}

func (p *ttftParts) sum() float64 { return p.Wait + p.Fresh + p.Again + p.Beside + p.Move + p.Step }

// scaled is each part times a factor.
func (p *ttftParts) scaled(by float64) ttftParts {
	return ttftParts{p.Wait * by, p.Fresh * by, p.Again * by, p.Beside * by, p.Move * by, p.Step * by}
}

// leastPrefill is what a request's prefill is at least, on the fastest server.
type leastPrefill struct {
	fresh float64   // seconds: of what no request that arrived before it has
	known []float64 // seconds of each of the blocks before that
	steps float64   // that compute the former
}

// ttftBounds are ttftBound for all policies, and for those whose decode servers compute no prompts.
func (c *cluster) ttftBounds() [2]ttftParts {
	return [2]ttftParts{c.ttftBound(false), c.ttftBound(true)}
}

// isAbove returns an error if the mean time to the first token is below what it is at least.
func (o *Outcome) isAbove(bounds [2]ttftParts) error {
	least := bounds[0].sum()
	if o.Aggregated+o.Preemptions == 0 {
		least = bounds[1].sum()
	}
	if o.TTFT.Mean < least*(1-1e-9) {
		return fmt.Errorf("policy %s, scenario %s, seed %d: a mean TTFT of %.4f s is below %.4f s, below which none can be", o.Policy, o.Scenario, o.Seed, o.TTFT.Mean, least)
	}
	return nil
}

// ttftBound is a mean time to the first token that no policy is below on a run's requests, whatever
// it knows. With pairsOnly that is so for policies whose decode servers compute no prompts; they may
// cut prompts in pieces.
//
// A request's blocks are computed one behind the other. Those that no earlier request has are not
// there when it arrives, so that its first token is at least their prefill away, on the fastest server.
// Its tokens fill so many steps, and it leaves the engine by a decode step. Beside that one of two
// things is counted:
//
//   - The servers cannot do more work than they have time for (leastDelay): what no request had
//     before is work that is done for that request alone.
//   - What an earlier request had is computed again, unless it was kept since. All caches together
//     count as one (mostSaved).
func (c *cluster) ttftBound(pairsOnly bool) ttftParts {
	prefills, least := c.leastPrefills()
	var sum ttftParts
	all := 0.0 // prefill of known blocks, if none is kept
	tasks := make([]task, len(c.jobs))
	for i := range c.jobs {
		sum.Fresh += prefills[i].fresh
		c.addTail(&sum, &c.jobs[i], prefills[i].steps, pairsOnly)
		tasks[i] = task{arrived: c.jobs[i].arrived, work: prefills[i].fresh}
		for _, seconds := range prefills[i].known {
			all += seconds
		}
	}
	wait := leastDelay(tasks, c.rate(least, pairsOnly))
	again := all - c.mostKept(prefills, pairsOnly)
	if wait > again {
		sum.Wait = wait
	} else {
		sum.Again = max(0, again)
	}
	return sum.scaled(1 / float64(len(c.jobs)))
}

// perWork is the seconds of a server's work for a token, and for a token attended to.
type perWork struct{ token, square float64 }

func (w perWork) seconds(from, to int) float64 {
	a, b := float64(from), float64(to)
	return w.token*(b-a) + w.square*(b*b-a*a)
}

func (h *Hardware) perWork(speed float64) perWork {
	return perWork{speed * h.PrefillPerToken / h.PrefillRate, speed * h.PrefillPerSquare / h.PrefillRate}
}

// leastWork is that of the fastest server.
func (c *cluster) leastWork() perWork {
	least := c.hw.perWork(1) // of decode servers
	for _, p := range c.prefills {
		w := p.hw.perWork(p.speed)
		least.token, least.square = min(least.token, w.token), min(least.square, w.square)
	}
	return least
}

// rate is how many seconds of the least work the servers do in a second, at most.
func (c *cluster) rate(least perWork, pairsOnly bool) (sum float64) {
	of := func(w perWork) float64 {
		rate := least.token / w.token
		if w.square > 0 {
			rate = max(rate, least.square/w.square)
		}
		return min(1, rate)
	}
	for _, p := range c.prefills {
		sum += of(p.hw.perWork(p.speed))
	}
	if !pairsOnly {
		sum += float64(len(c.decodes)) * of(c.hw.perWork(1))
	}
	return sum
}

// leastPrefills are those of the requests.
func (c *cluster) leastPrefills() ([]leastPrefill, perWork) {
	least := c.leastWork()
	sharers := newUses(c.jobs, c.blocks, nil).has // requests with each block, in order of arrival
	ever := make([]float64, c.blocks)
	for block, all := range sharers {
		ever[block] = c.leastNoise(all, math.Inf(1))
	}
	prefills := make([]leastPrefill, len(c.jobs))
	for i := range c.jobs {
		j, p := &c.jobs[i], &prefills[i]
		whole := j.req.whole()
		known := 0
		for known < len(whole) && sharers[whole[known]][0] < int32(i) {
			p.known = append(p.known, ever[whole[known]]*least.seconds(known*blockTokens, min((known+1)*blockTokens, j.req.Prompt-1)))
			known++
		}
		from := min(known*blockTokens, j.req.Prompt-1)
		within := j.arrived + j.noise*least.seconds(from, j.req.Prompt) + 2*mostDelay
		for k, block := range whole[known:] {
			p.fresh += c.leastNoise(sharers[block], within) * least.seconds((known+k)*blockTokens, (known+k+1)*blockTokens)
		}
		p.fresh += j.noise * least.seconds(max(from, len(whole)*blockTokens), j.req.Prompt)
		p.steps = math.Ceil(float64(j.req.Prompt-from) / float64(max(c.hw.PrefillTokens, c.hw.DecodeTokens)))
	}
	return prefills, least
}

// leastNoise is that of the requests with a block which arrive before a moment: any of them may be the one
// that computes it. A request that waits for one which arrives later is longer under way than if it had
// computed all by itself, by twice mostDelay.
func (c *cluster) leastNoise(sharers []int32, before float64) float64 {
	least := math.Inf(1)
	for _, i := range sharers {
		if c.jobs[i].arrived >= before {
			break
		}
		least = min(least, c.jobs[i].noise)
	}
	return least
}

// addTail adds what a request takes beside the work of its prefill: by a pair of servers, or by a
// decode server that computes it. By a pair the KV behind its last whole block moves at the end, but
// where it leaves layer by layer.
func (c *cluster) addTail(sum *ttftParts, j *job, steps float64, pairsOnly bool) {
	sum.Move += 2 * c.scenario.trip()
	step := c.hw.step(1, j.req.Prompt)
	beside, move := steps*c.hw.PrefillStep, 0.0
	if !c.scenario.Overlap {
		move = c.scenario.handOff() + float64(j.req.Prompt%blockTokens)*c.hw.KVBytesPerToken/c.hw.NIC
	}
	if c.scenario.saysFirst(j.req) {
		move, step = 0, 0
	}
	if alone := (steps - 1) * min(c.hw.PrefillStep, c.hw.DecodeBase); !pairsOnly && alone+c.hw.step(1, j.req.Prompt) < beside+move+step {
		beside, move, step = alone, 0, c.hw.step(1, j.req.Prompt)
	}
	sum.Beside, sum.Move, sum.Step = sum.Beside+beside, sum.Move+move, sum.Step+step
}

// mostKept is the most seconds of prefill that keeping blocks until they are used again can save. A block
// was used last when the request with it that arrived last had its first token, which may be
// longer after its arrival than its own least time with nothing kept: it waited then for longer than
// that spares others, as long as a second of room for all its blocks costs no more than a second.
func (c *cluster) mostKept(prefills []leastPrefill, pairsOnly bool) float64 {
	var uses []reuse
	free := make([]float64, c.blocks) // when the last request with a block has its first token
	most := 1                         // blocks of a request
	for i := range c.jobs {
		j := &c.jobs[i]
		whole := j.req.whole()
		most = max(most, len(whole))
		var own ttftParts
		c.addTail(&own, j, prefills[i].steps, pairsOnly)
		alone := own.sum() + prefills[i].fresh
		for k, seconds := range prefills[i].known {
			alone += seconds
			uses = append(uses, reuse{kept: max(0, j.arrived-free[whole[k]]), saved: seconds})
		}
		for _, block := range whole {
			free[block] = j.arrived + alone
		}
	}
	span := c.jobs[len(c.jobs)-1].arrived - c.jobs[0].arrived
	return mostSaved(uses, c.cacheBlocks()*span, 1/float64(most))
}

// cacheBlocks is the KV memory of all servers and of the store that they share, in blocks.
func (c *cluster) cacheBlocks() (blocks float64) {
	caches := make([]*blockCache, 0, len(c.prefills)+len(c.decodes)+1)
	for _, p := range c.prefills {
		caches = append(caches, p.cache)
	}
	for _, d := range c.decodes {
		caches = append(caches, d.cache)
	}
	if c.store != nil {
		caches = append(caches, c.store)
	}
	for _, cache := range caches {
		blocks += float64(cache.capacity)
	}
	return blocks
}

// reuse is a block that came before: the seconds for which it must be kept for that, and of prefill
// that it saves.
type reuse struct{ kept, saved float64 }

// mostSaved is more than can be saved with so many seconds of blocks. With any price of a second of
// a block (weak duality of the packing of intervals) no choice saves more than the room is worth and
// what each reuse saves beyond its price; the best price up to the dearest is searched for.
func mostSaved(uses []reuse, room, dearest float64) float64 {
	at := func(price float64) float64 {
		sum := price * room
		for _, u := range uses {
			sum += max(0, u.saved-price*u.kept)
		}
		return sum
	}
	low, high := math.Log(1e-9), math.Log(dearest) // seconds for a second of a block
	for range 60 {                                 // the sum is convex in the price
		a, b := low+(high-low)/3, high-(high-low)/3
		if at(math.Exp(a)) < at(math.Exp(b)) {
			high = b
		} else {
			low = a
		}
	}
	return slices.Min([]float64{at(0), at(math.Exp(low)), at(dearest)})
}
