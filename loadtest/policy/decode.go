package policy

import (
	"slices"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// decodeServer is one decode server: those that wait for KV room, those whose KV
// is there, and the batch. It steps with the others of its group.
type decodeServer struct {
	cluster *cluster
	group   *decodeGroup
	id      int
	rack    int
	speed   float64 // multiplies the time of a step; above 1 is slower
	cache   *blockCache
	waiting []*job // for KV room, first come first served
	pulling []pulledBy
	joining []*job // KV is there: in the batch from the next step on
	batch   []*job
	held    int // requests that have room: on their way, joining or in the batch
	context int // tokens of KV in the batch
	gauge   history
}

// pulledBy is a request whose KV is pulled, and how many tokens the server lacked of it.
type pulledBy struct {
	*job
	lacks int
}

// beginPull notes what is pulled for a request, false if it waits for what is pulled for another one.
func (d *decodeServer) beginPull(j *job) bool {
	held := d.cache.match(j.req.whole()) * blockTokens
	if before := d.worthAwaiting(j, held); before != nil {
		j.awaits = true
		before.followers = append(before.followers, j)
		return false
	}
	lacks := j.req.Prompt - held
	if lacks >= cost.WorthFollowing {
		d.pulling = append(d.pulling, pulledBy{j, lacks})
	}
	if !j.awaits {
		return true
	}
	c := d.cluster
	j.awaits, j.awaited = false, c.cal.now-j.prefilledAt
	j.estimate.bytes = float64(lacks) * c.hw.KVBytesPerToken
	if learner, ok := j.sender.policy().(pullAwaiter); ok {
		learner.BeginTransfer(j.sender.viewFor(j), j)
	}
	return true
}

// worthAwaiting is the request that brings most of the prompt of another one, of which so many tokens are here; nil
// if none is worth the wait.
func (d *decodeServer) worthAwaiting(j *job, held int) (best *job) {
	has := held
	for _, p := range d.pulling {
		if common := commonBlocks(j.req.whole(), p.req.whole()) * blockTokens; common > has && cost.WorthAwaiting(common, held, p.lacks) {
			best, has = p.job, common
		}
	}
	return best
}

// endPull lets those go that waited for what a request pulled.
func (d *decodeServer) endPull(j *job) {
	d.pulling = slices.DeleteFunc(d.pulling, func(p pulledBy) bool { return p.job == j })
	followers := j.followers
	j.followers = nil
	for _, f := range followers {
		d.cluster.askDecode(f)
	}
}

func newDecodeServer(c *cluster, id, rack int, speed float64) *decodeServer {
	d := &decodeServer{cluster: c, id: id, rack: rack, speed: speed}
	d.cache = newBlockCache(c.hw.DecodeCapacity, c.blocks, func(block int32) { c.events.removed(c.scenario.Prefill+d.id, block) })
	return d
}

// submit asks for KV room for a request.
func (d *decodeServer) submit(j *job) {
	d.waiting = append(d.waiting, j)
	d.admit()
}

// admit gives room to those that wait, in order, while there is any.
func (d *decodeServer) admit() {
	for len(d.waiting) > 0 && d.held < d.cluster.hw.DecodeSequences && d.offerRoom(d.waiting[0]) {
		j := d.waiting[0]
		d.waiting = d.waiting[1:]
		d.held++
		d.cluster.recordRoom(j)
	}
	d.observe()
}

// offerRoom reserves what a request needs beyond the blocks that are here for the tokens it has
// and the next, as vLLM does: an engine does not know how long the answer will be.
func (d *decodeServer) offerRoom(j *job) bool {
	blocks := j.req.whole()
	hit := d.cache.match(blocks)
	need := blocksOf(j.req.Prompt + j.generated + 1)
	d.cache.hold(blocks[:hit])
	if !d.cache.reserve(need - hit) {
		d.cache.drop(blocks[:hit])
		return false
	}
	j.onDecode, j.decodeBlocks = hit, need
	j.decodeHit = min(hit*blockTokens, j.req.Prompt)
	return true
}

// stage takes the KV of a piece of a prompt into the cache, where later pieces and the whole find
// it: as a request for one token does, which holds it no longer than it takes to say that. Such a request is looked
// at between two steps, when it comes and when its KV is there, and ends with a step.
func (d *decodeServer) stage(j *job) {
	d.cluster.cal.at(d.group.stepEnds(), func() { d.pullPiece(j) })
}

func (d *decodeServer) pullPiece(j *job) {
	blocks := j.req.whole()[:j.staging[0]/blockTokens]
	hit := d.cache.match(blocks)
	missing := blocks[hit:]
	d.cache.hold(blocks[:hit])
	if len(missing) > 0 && !d.cache.reserve(len(missing)) {
		d.cache.drop(blocks[:hit])
		d.cluster.finishStaging(j)
		return
	}
	j.staged += len(missing) * blockTokens
	d.cluster.move(j, len(missing)*blockTokens, func() {
		for _, block := range missing {
			if d.cache.publish(block) {
				d.cluster.events.stored(d.cluster.scenario.Prefill+d.id, block)
			}
		}
		step := d.cluster.hw.step(len(d.batch)+1, d.context+len(blocks)*blockTokens) * d.speed
		d.cluster.cal.at(d.group.stepEnds()+step, func() {
			d.cache.drop(blocks)
			d.cluster.finishStaging(j)
			d.admit()
		})
	})
}

// join brings a request whose KV is there, or is computed here, to the batch.
func (d *decodeServer) join(j *job) {
	d.joining = append(d.joining, j)
	d.group.interrupt()
}

// publish makes the whole blocks of a prompt that is here known.
func (d *decodeServer) publish(j *job) {
	whole := j.req.whole()
	for ; j.onDecode < len(whole); j.onDecode++ {
		if d.cache.publish(whole[j.onDecode]) {
			d.cluster.events.stored(d.cluster.scenario.Prefill+d.id, whole[j.onDecode])
		}
	}
}

// leave frees what a request holds.
func (d *decodeServer) leave(j *job) {
	d.cache.drop(j.req.whole()[:j.onDecode])
	d.cache.unreserve(j.decodeBlocks - j.onDecode)
	d.held--
	d.context -= j.context()
}

// grow takes the blocks for one more run of steps, and preempts the last that joined while there
// are none: its KV is lost and computed again.
func (d *decodeServer) grow() {
	for i := 0; i < len(d.batch); i++ {
		j := d.batch[i]
		need := blocksOf(j.context() + 1)
		for need > j.decodeBlocks && !d.cache.reserve(need-j.decodeBlocks) {
			last := d.batch[len(d.batch)-1]
			d.preempt(last)
			if last == j {
				return
			}
		}
		j.decodeBlocks = max(need, j.decodeBlocks)
	}
}

func (d *decodeServer) preempt(j *job) {
	d.batch = d.batch[:len(d.batch)-1]
	d.leave(j)
	j.preempted++
	j.recompute, j.decodePieces = true, cost.DecodePieces{}
	d.waiting = append([]*job{j}, d.waiting...)
}

// growth is how many steps the batch may run before a request needs a new block
// that is not sure to be there.
func (d *decodeServer) growth() int {
	if len(d.batch) == 0 {
		return d.cluster.longestRun
	}
	// Each sequence takes at most one block more than its steps fill.
	if steps := (d.cache.room()/len(d.batch) - 1) * blockTokens; steps > 0 {
		return steps
	}
	least := blockTokens
	for _, j := range d.batch {
		least = min(least, j.decodeBlocks*blockTokens-j.context())
	}
	return max(1, least)
}

// observe records what the server's gauges say from now on.
func (d *decodeServer) observe() {
	d.gauge.record(d.cluster.cal.now, Gauge{
		Running: len(d.batch) + len(d.joining), Waiting: len(d.waiting),
		KVUsed: float64(d.cache.used()) / float64(d.cache.capacity),
	})
}

func blocksOf(tokens int) int { return (tokens + blockTokens - 1) / blockTokens }
