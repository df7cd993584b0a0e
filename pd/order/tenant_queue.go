package order

import (
	"cmp"
	"slices"
)

// tenantQueue is the waiting requests of one tenant in one class, those that are late apart.
type tenantQueue struct {
	queueKey
	served  float64   // seconds of prefill that it was given while it waited
	waiting []*Ticket // in order of rank
}

// queueKey says which requests a queue holds.
type queueKey struct {
	class  int
	late   bool
	tenant string
}

func (t *Ticket) queueKey() queueKey { return queueKey{t.Class, t.late, t.Tenant} }

// tenantQueues holds all queues in which a request waits. A tenant takes turns by the work of its
// requests and not by their number. There may be as many queues as requests, so that no
// change of one looks at the others.
type tenantQueues struct {
	// sorted is the order of service: class, in a class those that are late last, and then
	// the tenant that was served least.
	sorted []*tenantQueue
	of     map[queueKey]*tenantQueue
	spare  *tenantQueue // the last one in which nobody waited any more, for its memory: mostly one request waits at a time; nil: none
}

// find returns the queue of a ticket and where it stands there, or would; a nil queue is
// one that no request waits in.
func (qs *tenantQueues) find(t *Ticket) (q *tenantQueue, at int, waits bool) {
	if q = qs.queue(t.queueKey()); q == nil {
		return nil, 0, false
	}
	at, _ = slices.BinarySearchFunc(q.waiting, t, byRank)
	return q, at, at < len(q.waiting) && q.waiting[at] == t
}

// queue is that of a key, nil where no request waits in it. Where there is one queue at most, as mostly, nothing is hashed.
func (qs *tenantQueues) queue(key queueKey) *tenantQueue {
	switch {
	case len(qs.sorted) > 1:
		return qs.of[key]
	case len(qs.sorted) == 1 && qs.sorted[0].queueKey == key:
		return qs.sorted[0]
	}
	return nil
}

// add lets a ticket wait. A tenant that comes anew is not owed what it did not ask for:
// it begins with as much as the one beside it that was served least.
func (qs *tenantQueues) add(t *Ticket) {
	q, at, _ := qs.find(t)
	if q == nil {
		q = qs.empty(t.queueKey())
		if first := qs.group(q); first < len(qs.sorted) && qs.sorted[first].takesTurnsWith(q) {
			q.served = qs.sorted[first].served
		}
		if qs.of == nil {
			qs.of = make(map[queueKey]*tenantQueue)
		}
		qs.of[q.queueKey] = q
		qs.insert(q)
	}
	q.waiting = slices.Insert(q.waiting, at, t)
}

// remove takes a ticket out, false if it does not wait.
func (qs *tenantQueues) remove(t *Ticket) bool {
	q, at, waits := qs.find(t)
	if !waits {
		return false
	}
	q.waiting = slices.Delete(q.waiting, at, at+1)
	if len(q.waiting) == 0 {
		delete(qs.of, q.queueKey)
		qs.takeOut(q)
		qs.spare = q
	}
	return true
}

// empty is a queue in which nobody waits yet.
func (qs *tenantQueues) empty(key queueKey) *tenantQueue {
	q := qs.spare
	if qs.spare = nil; q == nil {
		q = new(tenantQueue)
	}
	*q = tenantQueue{queueKey: key, waiting: q.waiting[:0]}
	return q
}

// move gives a ticket that waits another rank. It stays in its queue, which remembers what
// the tenant was given, also where no other request waits there.
func (qs *tenantQueues) move(t *Ticket, rank float64) {
	q, at, waits := qs.find(t)
	if !waits {
		return
	}
	q.waiting = slices.Delete(q.waiting, at, at+1)
	t.rank = rank
	_, at, _ = qs.find(t)
	q.waiting = slices.Insert(q.waiting, at, t)
}

// setServed says what the tenant of a ticket that waits was given, in seconds of prefill.
func (qs *tenantQueues) setServed(t *Ticket, seconds float64) {
	if q, _, _ := qs.find(t); q != nil {
		qs.takeOut(q)
		q.served = seconds
		qs.insert(q)
	}
}

// insert puts a queue where it stands in the order of service.
func (qs *tenantQueues) insert(q *tenantQueue) {
	at, _ := slices.BinarySearchFunc(qs.sorted, q, byTurn)
	qs.sorted = slices.Insert(qs.sorted, at, q)
}

// takeOut takes a queue out of the order of service.
func (qs *tenantQueues) takeOut(q *tenantQueue) {
	if at, found := slices.BinarySearchFunc(qs.sorted, q, byTurn); found {
		qs.sorted = slices.Delete(qs.sorted, at, at+1)
	}
}

// group is where the queues beside one begin in the order of service.
func (qs *tenantQueues) group(q *tenantQueue) int {
	at, _ := slices.BinarySearchFunc(qs.sorted, q, byGroup)
	return at
}

// takesTurnsWith reports whether two queues are of one class and both late, or not late: their
// tenants take turns.
func (q *tenantQueue) takesTurnsWith(other *tenantQueue) bool { return byGroup(q, other) == 0 }

func byGroup(a, b *tenantQueue) int {
	return cmp.Or(cmp.Compare(a.class, b.class), lastIf(a.late, b.late))
}

func byTurn(a, b *tenantQueue) int {
	return cmp.Or(byGroup(a, b), cmp.Compare(a.served, b.served), cmp.Compare(a.tenant, b.tenant))
}

// work is the seconds of prefill that wait in a queue.
func (q *tenantQueue) work() (seconds float64) {
	for _, w := range q.waiting {
		seconds += w.leastWork
	}
	return seconds
}

// byRank compares ranks, and of equal ones the IDs, so that each has one place.
func byRank(a, b *Ticket) int {
	switch {
	case a.rank < b.rank || (a.rank == b.rank && a.ID < b.ID):
		return -1
	case a == b:
		return 0
	}
	return 1
}

// lastIf compares so that what is true comes last.
func lastIf(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
