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

	served, credit float64 // before it: of its line, and of the order
}

// Next returns the request that is to go now, false if none is. The caller sends
// it, and asks again with the state that follows; it does not use s afterwards.
//
// For each waiting request the pair minimises, over all pairs and over decode
// servers alone,
//
//	the cost of Servers.Best, with price = Weights.Price(W/P), + hold
//
// W are the other waiting requests, P the prefill servers. hold is what goes first on a
// server that is not free: the prefills of the requests before it that wait for that server.
// A decode server that has prompts ahead gets no further ones to compute. Only a request
// whose best pair is free may go, and one that has left a server free for long enough: see
// the package comment. In the first class, of those who are not late (Weights.LateLast),
// and of the tenant that was served least, the one with the shortest prefill less
// Ageing x waited does.
func (o *Order) Next(s *Servers) (Turn, bool) {
	if o.size == 0 {
		o.pace.lull()
		return Turn{}, false
	}
	o.look(s)
	may := func(t *Ticket, _ float64) (Pair, bool) {
		if t.Tokens > o.room {
			return Pair{}, false
		}
		return o.mayGo(t, s)
	}
	oldest := o.survey(s.Now)
	o.least = math.Inf(1)
	turn, ok := o.overdue(oldest.overdue, may)
	if !ok {
		o.keepRoom(oldest.crowdedOut, s)
		turn, ok = o.shortest(may)
	}
	if !ok {
		o.pace.look(s)
		return Turn{}, false
	}
	o.pace.went += turn.Ticket.shortest
	turn.Price = o.price(turn.Ticket)
	o.take(&turn)
	return turn, true
}

// Serve is Next for a caller that says by itself whether a request may go now, and to
// which servers, while so many seconds of prefill go before it: the order of service
// without the choice of a pair.
func (o *Order) Serve(now time.Duration, may May) (Turn, bool) {
	o.room = math.MaxInt
	turn, ok := o.overdue(o.survey(now).overdue, may)
	if !ok {
		turn, ok = o.shortest(may)
	}
	if ok {
		o.take(&turn)
	}
	return turn, ok
}

// PutBack lets a request wait on whose turn, the last of Next, came to nothing: its servers
// refused it. Nobody is charged for that.
func (o *Order) PutBack(turn Turn) {
	o.lines.add(turn.Ticket)
	o.size++
	o.lines.setServed(turn.Ticket, turn.served)
	o.credit = turn.credit
	o.pace.went -= turn.Ticket.shortest
}

// May says whether a request may go now, and with which pair, while so many seconds of
// prefill go before it.
type May func(t *Ticket, before float64) (Pair, bool)

// take lets a request go.
func (o *Order) take(turn *Turn) {
	if l, _, _ := o.lines.find(turn.Ticket); l != nil {
		turn.served = l.served
	}
	turn.credit = o.credit
	o.lines.setServed(turn.Ticket, turn.served+turn.Ticket.shortest)
	o.Remove(turn.Ticket)
	o.credit = min(1, o.credit+o.cfg.OverdueShare)
	if turn.Overdue {
		o.credit--
	}
}

// look fills the scratch.
func (o *Order) look(s *Servers) {
	o.crowd = float64(o.size-1) / float64(max(1, len(s.Prefill)))
	o.free, o.busy = o.free[:0], o.busy[:0]
	o.awaited = sized(o.awaited, len(s.Prefill))
	clear(o.awaited)
	for p := range s.Prefill {
		switch state := &s.Prefill[p]; {
		case state.Out:
		case o.isFree(state):
			o.free = append(o.free, p)
		default:
			o.busy = append(o.busy, p)
		}
	}
	o.room = s.mostRoom()
	o.ideal = s.ideal()
}

// isFree says whether a prefill server is about to be free.
func (o *Order) isFree(p *PrefillState) bool { return p.Ahead <= o.cfg.Ahead.Seconds() }

// leastAlone is less than any decode server costs a request that it computes the prompt of.
func (o *Order) leastAlone(t *Ticket) float64 {
	return t.alone + t.computed*float64(yetToCome+o.ideal.Running) + o.ideal.decoding(t)
}

// price is what a second of a request's prefill costs the others.
func (o *Order) price(t *Ticket) float64 { return t.Weights.Price(o.crowd) }

// eldest is who came first of those that waited too long: of all, and of those that no
// decode server has room for. Nil is nobody.
type eldest struct{ overdue, crowdedOut *Ticket }

// survey looks for them, moves those who have become late behind the others of their
// class, and counts for how long requests have left servers free.
func (o *Order) survey(now time.Duration) (oldest eldest) {
	o.moved = o.moved[:0]
	elapsed := (now - o.surveyed).Seconds()
	o.surveyed = now
	for _, l := range o.lines.sorted {
		for _, t := range l.waiting {
			if t.declines {
				t.declined, t.declines = t.declined+elapsed, false
			}
			if !t.late && t.isLate(now) {
				o.moved = append(o.moved, t)
			}
			if !o.isOverdue(t, now) {
				continue
			}
			if oldest.overdue == nil || t.Arrived < oldest.overdue.Arrived {
				oldest.overdue = t
			}
			if t.Tokens > o.room && (oldest.crowdedOut == nil || t.Arrived < oldest.crowdedOut.Arrived) {
				oldest.crowdedOut = t
			}
		}
	}
	for _, t := range o.moved {
		o.lines.remove(t)
		t.late = true
		o.lines.add(t)
	}
	return oldest
}

// overdueAfter is the wait in seconds after which a request has waited too long.
func (o *Order) overdueAfter(t *Ticket) float64 {
	after := o.cfg.OverdueAfter.Seconds() + o.cfg.OverdueFactor*t.shortest
	if o.cfg.Patience > 0 {
		after = min(after, o.cfg.Patience.Seconds()/2)
	}
	return after
}

func (o *Order) isOverdue(t *Ticket, now time.Duration) bool {
	return (now - t.Arrived).Seconds() > o.overdueAfter(t)
}

// keepRoom closes the decode server with the most room to all but the oldest
// overdue request that decode has no room for: smaller ones would take it as it
// comes, for ever.
func (o *Order) keepRoom(crowdedOut *Ticket, s *Servers) {
	if crowdedOut == nil {
		return
	}
	for d := range s.Decode {
		if !s.Decode[d].Out && s.Decode[d].Room == o.room {
			s.Decode[d].Out = true
			break
		}
	}
	o.room = s.mostRoom()
}

// overdue is the request that came first of those that waited too long, if its best pair
// is free, or it has left others free for long enough. It goes before shorter ones, but
// where servers are busy not elsewhere: what it has waited for is there, and without it it
// would take so much longer that everybody pays. Nor does a younger one that finds its pair
// free take the turn: else the first could wait for ever.
func (o *Order) overdue(oldest *Ticket, may May) (Turn, bool) {
	if oldest == nil || o.credit < 1 {
		return Turn{}, false
	}
	pair, free := may(oldest, 0)
	return Turn{Ticket: oldest, Pair: pair, Overdue: true}, free
}

// shortest is the request of the first class and tenant with one whose best pair is
// free, there the one with the least prefill less its age.
func (o *Order) shortest(may May) (Turn, bool) {
	before := 0.0
	for _, l := range o.lines.sorted {
		turn, seconds := o.shortestOf(l, may, before)
		if turn.Ticket != nil {
			return turn, true
		}
		before += seconds
	}
	return Turn{}, false
}

// shortestOf is that of one line, behind others with so many seconds of prefill; and the
// seconds of its own.
func (o *Order) shortestOf(l *line, may May, before float64) (best Turn, seconds float64) {
	o.least = math.Inf(1) // rank of best, with the prefill time with its own pair
	for _, t := range l.waiting {
		if t.rank >= o.least {
			break // nobody from here on can be better
		}
		pair, ok := may(t, before+seconds)
		seconds += t.shortest
		if !ok {
			continue
		}
		rank := t.rank
		if pair.Prefill != Alone {
			rank = t.rankOn(pair.Prefill)
		}
		if rank < o.least {
			best, o.least = Turn{Ticket: t, Pair: pair}, rank
		}
	}
	return best, seconds
}

// mayGo returns the best pair of a request if it is free, and the best that is free if it has
// left one free for long enough.
func (o *Order) mayGo(t *Ticket, s *Servers) (Pair, bool) {
	if o.waitsOn(t, s) {
		o.await(t)
		return Pair{}, false
	}
	pair, cost := o.bestFree(t, s)
	switch {
	case math.IsInf(cost, 1):
		if o.stillBusy(t, s) {
			o.await(t)
		}
		return Pair{}, false
	case o.mayBeImpatient(t, s) && s.first(t, pair) <= t.declined:
		return pair, true
	case o.busyIsBetter(t, s, cost):
		o.await(t)
		return Pair{}, false
	}
	return pair, true
}

// await notes that a request waits for the busy pair that it awaits: its prefill goes there
// before those of all behind it. And that it leaves a free server that it could have.
func (o *Order) await(t *Ticket) {
	o.awaited[t.awaits.Prefill] += t.Prefill[t.awaits.Prefill]
	for _, p := range o.free {
		t.declines = t.declines || !math.IsInf(t.Prefill[p], 1)
	}
}

// mayBeImpatient says whether a request has left a server free for as long as one that is
// free now would need at least to give its first token.
func (o *Order) mayBeImpatient(t *Ticket, s *Servers) bool {
	if t.declined == 0 {
		return false
	}
	step := o.ideal.StepSeconds(t)
	for _, p := range o.free {
		if first, _ := s.half(t, p, 0); first+t.move[p]+step <= t.declined {
			return true
		}
	}
	return false
}

// waitsOn says whether the pair that a request was last seen to wait for is better than
// all that are free: most wait for the same one as before, and need no search.
func (o *Order) waitsOn(t *Ticket, s *Servers) bool {
	if !o.stillBusy(t, s) || o.mayBeImpatient(t, s) {
		return false
	}
	price := o.price(t)
	cost := o.awaited[t.awaits.Prefill] + s.paired(t, t.awaits, price)
	if !(cost < o.leastAlone(t)) {
		return false
	}
	decoding := o.ideal.decoding(t)
	for _, p := range o.free {
		if _, half := s.half(t, p, price); half+t.move[p]+decoding <= cost {
			return false
		}
	}
	return true
}

// stillBusy says whether a request may wait for the pair that it was last seen to wait for.
func (o *Order) stillBusy(t *Ticket, s *Servers) bool {
	p, d := t.awaits.Prefill, t.awaits.Decode
	return p != Alone && s.Possible(t, t.awaits) && !o.isFree(&s.Prefill[p]) && s.fits(t, &s.Decode[d])
}

// bestFree is the best of the pairs that a request could have now, and its cost:
// infinite if there is none.
func (o *Order) bestFree(t *Ticket, s *Servers) (Pair, float64) {
	price, pair, least := o.price(t), Pair{}, math.Inf(1)
	decoding := o.ideal.decoding(t)
	for _, p := range o.free {
		if _, half := s.half(t, p, price); half+t.move[p]+decoding >= least {
			continue
		}
		if d, cost := s.bestFrom(t, p, price, least); cost < least {
			pair, least = Pair{p, d}, cost
		}
	}
	if o.leastAlone(t) >= least {
		return pair, least
	}
	if alone, cost := s.bestAlone(t, o.cfg.Ahead.Seconds()); cost < least {
		return alone, cost
	}
	return pair, least
}

// busyIsBetter says whether a server that is not free costs less than limit, with what goes
// first there. The pair that the request was last seen to wait for is looked at first:
// mostly it still does.
func (o *Order) busyIsBetter(t *Ticket, s *Servers, limit float64) bool {
	price := o.price(t)
	if o.stillBusy(t, s) && o.awaited[t.awaits.Prefill]+s.paired(t, t.awaits, price) < limit {
		return true
	}
	decoding, found := o.ideal.decoding(t), false
	for _, p := range o.busy {
		hold := o.awaited[p]
		if _, half := s.half(t, p, price); hold+half+t.move[p]+decoding >= limit {
			continue
		}
		if d, cost := s.bestFrom(t, p, price, limit-hold); hold+cost < limit {
			t.awaits, limit, found = Pair{p, d}, hold+cost, true
		}
	}
	return found
}
