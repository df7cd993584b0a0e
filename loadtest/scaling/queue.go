package scaling

import (
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// queue is the requests that wait for a prefill server. Its order is the gateway's own
// (pd/order), for an objective; without one it is first come, first served.
type queue struct {
	objective order.Objective
	wait      float64    // seconds after its own prefill in which a first token is due
	came      []*request // without an objective, in order of arrival

	order   *order.Order
	waiting map[int64]*request // by ticket
	sorted  []*order.Ticket    // scratch of each
	next    int64
	tokens  float64 // uncached ones
}

func newQueue(objective order.Objective, wait float64) *queue {
	return &queue{objective: objective, wait: wait, order: order.New(order.DefaultConfig()), waiting: make(map[int64]*request)}
}

func (q *queue) len() int { return len(q.came) + len(q.waiting) }

// ordered reports whether the gateway has an order of its own.
func (q *queue) ordered() bool { return q.objective != "" }

// links of one pair, which moves KV in no time: transfers are not modelled.
var links = order.NewLinkTable(1, 1)

// add lets a request wait whose prefill alone takes so many seconds.
func (q *queue) add(r *request, prefill float64) {
	q.tokens += float64(r.uncached)
	if !q.ordered() {
		q.came = append(q.came, r)
		return
	}
	q.next++
	r.queueEntry = order.Ticket{
		ID: q.next, Arrived: duration(r.at), Tokens: r.prompt, Output: float64(r.output),
		TTFT: q.wait + prefill, Weights: q.objective.Of(q.wait + prefill).Weights(),
		Prefill: []float64{prefill}, Missing: []float64{0}, PairsFirst: true,
	}
	q.waiting[q.next] = r
	q.order.Add(&r.queueEntry, links)
}

// serve takes the request that goes next out of the queue, nil if none may.
func (q *queue) serve(now float64, may func(*request) bool) *request {
	if !q.ordered() {
		if len(q.came) == 0 || !may(q.came[0]) {
			return nil
		}
		r := q.came[0]
		q.came = q.came[1:]
		q.tokens -= float64(r.uncached)
		return r
	}
	turn, ok := q.order.Serve(duration(now), func(t *order.Ticket, _ float64) (order.Pair, bool) {
		return order.Pair{}, may(q.waiting[t.ID])
	})
	if !ok {
		return nil
	}
	return q.left(turn.Ticket)
}

// each shows the first requests of an ordered queue, and takes out the one that is wanted.
func (q *queue) each(most int, wanted func(*request) bool) {
	q.sorted = q.order.All(q.sorted[:0])
	for _, t := range q.sorted[:min(most, len(q.sorted))] {
		if wanted(q.waiting[t.ID]) {
			q.order.Remove(t)
			q.left(t)
			return
		}
	}
}

// left is the request of a ticket that waits no more.
func (q *queue) left(t *order.Ticket) *request {
	r := q.waiting[t.ID]
	delete(q.waiting, t.ID)
	q.tokens -= float64(r.uncached)
	return r
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
