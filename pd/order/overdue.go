package order

import (
	"math"
	"time"
)

// oldestOverdue is the first to arrive of the requests that waited too long: of all, and of
// those that no decode server has room for. Nil: there is none.
type oldestOverdue struct{ overdue, lacksKVRoom *Ticket }

// scanWaiting looks for them, moves requests that have become late behind the others of their
// class, and counts for how long requests have left servers free. Without servers (Serve) none lacks room.
func (o *Order) scanWaiting(now time.Duration, s *Servers) (oldest oldestOverdue) {
	elapsed, limits := o.countDeclined(now), o.overdueLimits()
	for _, q := range o.queues.sorted {
		for _, t := range q.waiting {
			if t.isDeclining {
				t.declined, t.isDeclining = t.declined+elapsed, false
			}
			if !t.late && t.isLate(now) {
				o.moved = append(o.moved, t)
			}
			if (now - t.Arrived).Seconds() <= limits.of(t) {
				continue
			}
			if oldest.overdue == nil || t.Arrived < oldest.overdue.Arrived {
				oldest.overdue = t
			}
			if t.lacksKVRoom && !t.countsOnAll {
				t.countsOnAll = true
				t.lacksKVRoom = o.exceedsAll(t, s) // perhaps not any more
			}
			if t.lacksKVRoom && (oldest.lacksKVRoom == nil || t.Arrived < oldest.lacksKVRoom.Arrived) {
				oldest.lacksKVRoom = t
			}
		}
	}
	for _, t := range o.moved {
		o.queues.remove(t)
		t.late = true
		o.queues.add(t)
	}
	clear(o.moved) // it keeps no request that has gone
	o.moved = o.moved[:0]
	return oldest
}

// countDeclined counts for how long requests have left servers free for busy ones since the look before, and returns the
// seconds since then.
func (o *Order) countDeclined(now time.Duration) (elapsed float64) {
	elapsed, o.surveyed = (now - o.surveyed).Seconds(), now
	for p, isDeclined := range o.isDeclinedFor {
		if isDeclined {
			o.declinedFor[p], o.isDeclinedFor[p] = o.declinedFor[p]+elapsed, false
		}
	}
	return elapsed
}

// overdueLimits are the limits, in seconds, beyond which a request has waited too long.
type overdueLimits struct {
	after, factor float64 // that, and so many times its prefill
	most          float64 // and at most that
}

func (o *Order) overdueLimits() overdueLimits {
	l := overdueLimits{o.cfg.OverdueAfter.Seconds(), o.cfg.OverdueFactor, math.Inf(1)}
	if o.cfg.Patience > 0 {
		l.most = o.cfg.Patience.Seconds() / 2
	}
	return l
}

// of is the wait in seconds after which a request has waited too long.
func (l *overdueLimits) of(t *Ticket) float64 { return min(l.after+l.factor*t.leastPrefill, l.most) }

// Overtaken is how long smaller requests that come later may keep one waiting that decode had no KV room for: they
// take the room as it comes, until it is overdue. 0: they may not, since that would be after its Latest.
func (o *Order) Overtaken(t *Ticket) time.Duration {
	limits := o.overdueLimits()
	longest := time.Duration(limits.of(t) * float64(time.Second))
	if !t.lackedKVRoom || t.Arrived+longest > t.latest() {
		return 0
	}
	return longest
}

// overdue is the request that came first of those that waited too long, if its best pair
// is free, or it has left others free for long enough. It goes before shorter ones, but
// where servers are busy not elsewhere: what it has waited for is there, and without it it
// would take so much longer that all requests pay. Nor does a younger one that finds its pair
// free take the turn: else the first could wait for ever.
func (o *Order) overdue(oldest *Ticket, may May) (Turn, bool) {
	if oldest == nil || o.overdueCredit < 1 {
		return Turn{}, false
	}
	pair, free := may(oldest, 0)
	return Turn{Ticket: oldest, Pair: pair, Overdue: true}, free
}
