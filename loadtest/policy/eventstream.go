package policy

import "math/rand/v2"

// eventStream carries what servers store and remove to the gateways: in batches,
// some time later, and not always. An event that is lost is lost for that gateway
// for good: no policy here replays.
type eventStream struct {
	cluster *cluster
	rng     *rand.Rand
	pending []kvEvent
}

// kvEvent says that a server has stored or removed a block. Servers are numbered
// prefill first, decode after.
type kvEvent struct {
	server int32
	block  int32
	stored bool
}

func newEventStream(c *cluster, seed uint64) *eventStream {
	return &eventStream{cluster: c, rng: rand.New(rand.NewPCG(seed, 2))}
}

func (e *eventStream) stored(server int, block int32) {
	e.add(kvEvent{int32(server), block, true})
}

func (e *eventStream) removed(server int, block int32) {
	e.add(kvEvent{int32(server), block, false})
}

func (e *eventStream) add(ev kvEvent) {
	if len(e.pending) == 0 {
		e.cluster.cal.after(e.cluster.scenario.EventDelay, e.send)
	}
	e.pending = append(e.pending, ev)
}

// send delivers what was collected since the oldest event of the batch; so an
// event is at most EventDelay old when it arrives, on average half of that.
func (e *eventStream) send() {
	batch := e.pending
	e.pending = nil
	for _, g := range e.cluster.gateways {
		for i := range batch {
			if e.cluster.scenario.EventLoss > 0 && e.rng.Float64() < e.cluster.scenario.EventLoss {
				continue
			}
			g.index.apply(batch[i])
		}
	}
}
