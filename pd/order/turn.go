package order

import (
	"math"
	"time"
)

// Turn is a request that goes now, and where.
type Turn struct {
	Ticket *Ticket
	Pair
	Overdue bool
	Price   float64 // what a second of prefill costs the others

	served, credit float64 // before it: of its queue, and of the order
	declinedFor    float64 // before it: of the server that it leaves
	longGaps       float64 // that it makes in streams of decode
}

// Next returns the request that is to go now, false if none is. The caller sends
// it, and asks again with the state that follows; it does not use s afterwards.
//
// For each waiting request the pair minimises, over all pairs and over decode
// servers alone,
//
//	the cost of Servers.Best, with price = Weights.Price(W/P), + hold
//
// W are the other requests that wait for prefill, since decode has room for them, P the prefill
// servers. hold is what goes first on a server that is not free: the prefills of the requests before it
// that wait for that server; and
// Config.WaitMargin/(1+W/P) of these and of the work ahead, unless it follows another request
// (Ticket.Follows).
// A decode server that has prompts ahead gets no further ones to compute. Only a request
// whose best pair is free may go, and one that has left a server free for long enough: see
// the package comment. In the first class, of the requests that are not late (Weights.LateLast),
// and of the tenant that was served least, the one with the shortest prefill less
// Ageing x waited does; of one that has begun BegunShare of what is left counts. Who would go at a price
// that is Outdated is priced anew before (Servers.Renew), and may wait then.
func (o *Order) Next(s *Servers) (Turn, bool) {
	if o.size == 0 {
		o.rate.reset()
		return Turn{}, false
	}
	o.prepare(s)
	may := func(t *Ticket, _ float64) (Pair, bool) {
		t.passOver(s)
		if o.lacksKVRoom(t, s) {
			return Pair{}, false
		}
		pair, ok := o.mayGo(t, s)
		if !ok || !t.Outdated || t.rankWith(pair) >= o.least {
			return pair, ok
		}
		o.renew(t, s)
		return o.mayGo(t, s)
	}
	oldest := o.scanWaiting(s.Now, s)
	o.least = math.Inf(1)
	if !o.mayAnyGo(s) {
		o.sampleRate(s)
		return Turn{}, false
	}
	turn, ok := o.overdue(oldest.overdue, may)
	if !ok {
		if oldest.overdue != nil {
			oldest.overdue.comeBack(s)
		}
		o.reserveKVRoom(oldest.lacksKVRoom, s)
		turn, ok = o.shortestFirst(may, s)
	}
	if !ok {
		o.placeRenewed()
		o.sampleRate(s)
		return Turn{}, false
	}
	o.rate.went += turn.Ticket.leastWork
	turn.Price = o.price(turn.Ticket)
	if !turn.Overdue {
		o.comeBackBehind(turn.Ticket, s)
	}
	turn.longGaps = turn.Ticket.longGapsOn(turn.Pair, s)
	o.placeRenewed()
	o.recordTurn(&turn)
	o.recordWent(turn.Ticket, s.Now)
	return turn, true
}

// NextAlone is Next for a request that comes while none waits, and may go at once, as most do. It is false where another
// waits or it would have to: then Admit and Next say the same of it as if it had not been asked.
func (o *Order) NextAlone(t *Ticket, s *Servers) (Turn, bool) {
	if o.size > 0 {
		return Turn{}, false
	}
	o.begin(t, s.Links)
	o.prepare(s)
	o.countDeclined(s.Now)
	o.least = math.Inf(1)
	limits := o.overdueLimits()
	if (s.Now-t.Arrived).Seconds() > limits.of(t) || !o.mayAnyGo(s) {
		return Turn{}, false
	}
	pair, ok := o.mayGo(t, s)
	if !ok {
		return Turn{}, false
	}
	turn := Turn{Ticket: t, Pair: pair, Price: o.price(t), longGaps: t.longGapsOn(pair, s)}
	o.recordTurn(&turn)
	o.recordWent(t, s.Now)
	o.rate.reset()
	return turn, true
}

// renew prices a request anew while all that wait are looked at. It keeps its place until placeRenewed.
func (o *Order) renew(t *Ticket, s *Servers) {
	s.Renew(t)
	o.derive(t, s.Links)
	o.renewed = append(o.renewed, t)
}

// placeRenewed gives the requests that were priced anew their places.
func (o *Order) placeRenewed() {
	for _, t := range o.renewed {
		o.place(t)
	}
	clear(o.renewed) // it keeps no request that has gone
	o.renewed = o.renewed[:0]
}

// sampleRate samples the rate of prefill, unless all that wait do so for KV room.
func (o *Order) sampleRate(s *Servers) {
	if o.waitsForPrefill {
		o.rate.sample(s)
	} else {
		o.rate.reset()
	}
}

// Serve is Next for a caller that says by itself whether a request may go now, and to
// which servers, while so many seconds of prefill go before it: the order of service
// without the choice of a pair.
func (o *Order) Serve(now time.Duration, may May) (Turn, bool) {
	turn, ok := o.overdue(o.scanWaiting(now, nil).overdue, may)
	if !ok {
		turn, ok = o.shortestFirst(may, nil)
	}
	if ok {
		o.recordTurn(&turn)
	}
	return turn, ok
}

// UndoTurn lets a request wait on whose turn, the last of Next or NextAlone, came to nothing: its servers
// refused it. No tenant is charged for that.
func (o *Order) UndoTurn(turn Turn) {
	o.enqueue(turn.Ticket)
	o.forgetWent()
	o.queues.setServed(turn.Ticket, turn.served)
	o.overdueCredit = turn.credit
	if turn.Ticket.leaves {
		o.declinedFor[turn.Ticket.awaited.Prefill] += turn.declinedFor
	}
	o.rate.went -= turn.Ticket.leastWork
	o.gaps.long -= turn.longGaps
}

// May reports whether a request may go now, and to which pair, while before seconds of prefill go
// ahead of it.
type May func(t *Ticket, before float64) (Pair, bool)

// recordTurn lets a request go.
func (o *Order) recordTurn(turn *Turn) {
	if q, _, _ := o.queues.find(turn.Ticket); q != nil {
		turn.served = q.served
	}
	turn.credit = o.overdueCredit
	o.gaps.long += turn.longGaps
	if turn.Ticket.leaves {
		turn.declinedFor = o.declinedFor[turn.Ticket.awaited.Prefill]
		o.declinedFor[turn.Ticket.awaited.Prefill] = 0
	}
	o.queues.setServed(turn.Ticket, turn.served+turn.Ticket.leastWork)
	o.Remove(turn.Ticket)
	o.overdueCredit = min(1, o.overdueCredit+o.cfg.OverdueShare)
	if turn.Overdue {
		o.overdueCredit--
	}
}

// readTogether is how many requests are read ahead of the search: of a thousand that wait it looks at some hundreds.
const readTogether = 32

// readCostsOnFree puts what the next requests cost on the free prefill server, if it is the only one, beside what else
// is read of them: one behind the other they wait for memory together, in the search each by itself.
func (o *Order) readCostsOnFree(next []*Ticket) {
	if len(o.free) != 1 || len(next) < longQueue {
		return
	}
	p := o.free[0]
	for _, t := range next[:min(readTogether, len(next))] {
		if t.free != p {
			t.free, t.onFree = p, t.onPrefill[p]
		}
	}
}

// longQueue is how many requests of a tenant are read ahead. In a shorter queue few are looked at behind the best so far.
const longQueue = 8

// shortestFirst is the request of the first class and tenant with one whose best pair is
// free, there the one with the least prefill less its age. Lower classes do not get the room that it waits for.
func (o *Order) shortestFirst(may May, s *Servers) (Turn, bool) {
	before := 0.0
	o.lackingKVRoom = nil
	for i, q := range o.queues.sorted {
		if i > 0 && q.class != o.queues.sorted[i-1].class && o.lackingKVRoom != nil {
			o.reserveKVRoom(o.lackingKVRoom, s)
			o.lackingKVRoom = nil
		}
		turn, seconds := o.shortestOfTenant(q, may, before)
		if turn.Ticket != nil {
			return turn, true
		}
		before += seconds
	}
	return Turn{}, false
}

// shortestOfTenant is that of one tenant, behind others with so many seconds of prefill; and the
// seconds of its own.
func (o *Order) shortestOfTenant(q *tenantQueue, may May, before float64) (best Turn, seconds float64) {
	o.least = math.Inf(1) // rank of best, with the prefill time with its own pair
	for i, t := range q.waiting {
		if i%readTogether == 0 {
			o.readCostsOnFree(q.waiting[i:])
		}
		if t.rank >= o.least {
			break // no ticket from here on can be better
		}
		pair, ok := may(t, before+seconds)
		seconds += t.leastWork
		if !ok {
			continue
		}
		if rank := t.rankWith(pair); rank < o.least {
			best, o.least = Turn{Ticket: t, Pair: pair}, rank
		}
	}
	return best, seconds
}
