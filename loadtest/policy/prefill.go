package policy

import "slices"

// prefillServer computes prompts in steps of at most a budget of tokens: first
// the requests it has begun, then the waiting ones in order of their keys. A
// prompt longer than the budget takes several steps (chunked prefill).
type prefillServer struct {
	cluster *cluster
	id      int
	rack    int
	hw      *Hardware
	speed   float64 // multiplies the time of work; above 1 is slower
	cache   *blockCache
	waiting []*job // in order of key
	begun   []*job // in order of beginning
	step    []chunk
	busy    bool
	full    bool     // the step under way has all of its tokens: who waits is not looked at
	reads   []func() // of KV, that begin as soon as they are looked at
	worked  float64  // seconds of steps so far
	gauge   history
}

// chunk is a part of a prompt in the step under way.
type chunk struct {
	job      *job
	from, to int // tokens of the prompt
}

func newPrefillServer(c *cluster, id int) *prefillServer {
	s := c.scenario
	p := &prefillServer{cluster: c, id: id, rack: s.prefillRack(id), hw: s.prefillHardware(id), speed: s.prefillSpeed(id)}
	p.cache = newBlockCache(c.hw.PrefillCapacity, c.blocks, func(block int32) { c.events.removed(p.id, block) })
	return p
}

// submit queues a job; of equal keys the first is served first.
func (p *prefillServer) submit(j *job) {
	at, _ := slices.BinarySearchFunc(p.waiting, j.key, func(w *job, key float64) int {
		if w.key <= key {
			return -1
		}
		return 1
	})
	p.waiting = slices.Insert(p.waiting, at, j)
	p.observe()
	if !p.busy {
		p.begin()
	}
}

// begin starts the next step, if there is anything to do.
func (p *prefillServer) begin() {
	budget := p.cluster.hw.PrefillTokens
	p.step = p.step[:0]
	seconds := 0.0
	for _, j := range p.begun {
		if budget == 0 {
			break
		}
		seconds += p.take(j, &budget)
	}
	for len(p.waiting) > 0 && budget > 0 && p.admit(p.waiting[0]) {
		j := p.waiting[0]
		p.waiting = slices.Delete(p.waiting, 0, 1)
		p.begun = append(p.begun, j)
		seconds += p.cluster.hw.PrefillBase * j.noise * p.speed
		seconds += p.take(j, &budget)
	}
	p.busy, p.full = len(p.step) > 0, budget == 0
	if !p.full {
		p.read()
	}
	p.observe()
	if !p.busy {
		return
	}
	seconds += p.cluster.hw.PrefillStep
	p.worked += seconds
	p.cluster.cal.after(seconds, p.end)
}

// read begins to read the KV that waits to be read.
func (p *prefillServer) read() {
	reads := p.reads
	p.reads = nil
	for _, begin := range reads {
		begin()
	}
}

// take gives a job its part of the step and returns the time of it.
func (p *prefillServer) take(j *job, budget *int) float64 {
	to := min(j.upTo, j.computed+*budget)
	p.step = append(p.step, chunk{job: j, from: j.computed, to: to})
	*budget -= to - j.computed
	p.cluster.chunkBegins(j, to)
	return p.hw.work(j.computed, to) * j.noise * p.speed
}

// admit looks up the prefix and takes the KV that the prompt needs, false if what
// is held for others leaves too little.
func (p *prefillServer) admit(j *job) bool {
	blocks := j.whole()
	hit := p.cache.match(blocks)
	p.cache.hold(blocks[:hit])
	if !p.cache.reserve(blocksOf(j.upTo) - hit) {
		p.cache.drop(blocks[:hit])
		return false
	}
	j.onPrefill = hit
	j.computed = min(hit*blockTokens, j.upTo-1)
	p.cluster.beginPrefill(j)
	return true
}

// end finishes the step: its blocks can be reused, and prompts that are done are
// handed over.
func (p *prefillServer) end() {
	for _, c := range p.step {
		c.job.computed = c.to
		p.publish(c.job)
	}
	done := p.begun[:0:0]
	p.begun = slices.DeleteFunc(p.begun, func(j *job) bool {
		if j.computed == j.upTo {
			done = append(done, j)
			return true
		}
		return false
	})
	for _, j := range done {
		p.cluster.finishPrefill(j)
	}
	p.begin()
}

// publish makes the whole blocks that a job has computed known.
func (p *prefillServer) publish(j *job) {
	whole := j.whole()
	upTo := min(j.computed/blockTokens, len(whole))
	for ; j.onPrefill < upTo; j.onPrefill++ {
		if p.cache.publish(whole[j.onPrefill]) {
			p.cluster.events.stored(p.id, whole[j.onPrefill])
		}
	}
}

// release frees the KV of a piece, or of the rest of a job, once decode has it: so many leading
// blocks, and so many that have no hash.
func (p *prefillServer) release(hashed []int32, private int) {
	p.cache.drop(hashed)
	p.cache.unreserve(private)
	p.observe()
	if !p.busy {
		p.begin()
	}
}

// observe records what the server's gauges say from now on.
func (p *prefillServer) observe() {
	p.gauge.record(p.cluster.cal.now, Gauge{
		Running: len(p.begun), Waiting: len(p.waiting),
		KVUsed: float64(p.cache.used()) / float64(p.cache.capacity),
	})
}
