package order

import (
	"math"
	"slices"
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

// UndoTurn lets a request wait on whose turn, the last of Next, came to nothing: its servers
// refused it. No tenant is charged for that.
func (o *Order) UndoTurn(turn Turn) {
	o.enqueue(turn.Ticket)
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

// prepare fills the scratch.
func (o *Order) prepare(s *Servers) {
	o.free, o.busy = o.free[:0], o.busy[:0]
	o.awaitedWork = sized(o.awaitedWork, len(s.Prefill))
	clear(o.awaitedWork)
	if len(o.declinedFor) != len(s.Prefill) {
		o.declinedFor, o.isDeclinedFor = make([]float64, len(s.Prefill)), make([]bool, len(s.Prefill))
	}
	o.addRest(s)
	s.setFreed()
	o.countWaiting(s)
	s.AverageAwaiting = o.waitingPerServer
	o.gaps.advance(s)
	s.StreamDiscount = o.gaps.discount()
	o.isFree, o.decode = sized(o.isFree, len(s.Prefill)), -1
	ahead := o.cfg.Ahead.Seconds()
	for p := range s.Prefill {
		state := &s.Prefill[p]
		o.isFree[p] = state.isFree(max(ahead, state.PerStep))
		switch {
		case state.Excluded:
		case o.isFree[p]:
			o.free = append(o.free, p)
			if state.rest > 0 { // not to those that follow what is left there
				o.busy = append(o.busy, p)
			}
		default:
			o.busy = append(o.busy, p)
		}
	}
	o.beginsIn = sized(o.beginsIn, len(s.Prefill))
	for p := range s.Prefill {
		o.beginsIn[p] = math.Inf(1)
	}
	for _, p := range o.busy {
		o.beginsIn[p] = s.Prefill[p].Ahead
	}
	o.soonest = o.soonestBegin()
	o.fastestDecode = s.fastestDecode()
}

// countWaiting counts the requests that wait for prefill, in all and by the server that they wait for: what goes
// there before them delays each by the whole of its prefill, whoever waits for other servers. They are those that
// decode has room for together, in the order of service: the others wait for that, whatever prefill does.
func (o *Order) countWaiting(s *Servers) {
	for p := range s.Prefill {
		s.Prefill[p].Awaiting = 0
	}
	o.mostKV, o.keepsKVRoom = s.kvMost(), false
	waiting, lacking, room := 0, 0, o.mostKV.all
	for _, q := range o.queues.sorted {
		for _, t := range q.waiting {
			t.countedFor, t.isCounted = Aggregated, false
			t.lacksKVRoom = o.exceedsAll(t, s)
			t.lackedKVRoom = t.lackedKVRoom || t.lacksKVRoom
			if t.exceeds(min(room, o.mostKV.room)) {
				lacking++
				continue
			}
			waiting++
			if !t.Begun {
				room -= t.Tokens
			}
			if t.countedFor = t.waitsFor(); t.countedFor != Aggregated {
				t.isCounted = true
				s.Prefill[t.countedFor].Awaiting++
			}
		}
	}
	s.KVPrice = 0
	if lacking > 0 {
		s.KVPrice = delayedByKV * float64(lacking) / max(1, s.kvTokens())
	}
	o.waitsForPrefill = waiting > 0
	o.waitingPerServer = float64(max(0, waiting-1)) / float64(max(1, len(s.Prefill)))
}

// passOver leaves a request out of that count: those that are looked at from now on are behind it.
func (t *Ticket) passOver(s *Servers) {
	if t.isCounted {
		t.isCounted = false
		s.Prefill[t.countedFor].Awaiting--
	}
}

// comeBack undoes passOver.
func (t *Ticket) comeBack(s *Servers) {
	if !t.isCounted && t.countedFor != Aggregated {
		t.isCounted = true
		s.Prefill[t.countedFor].Awaiting++
	}
}

// comeBackBehind makes the count what it was when a request of a queue was looked at.
func (o *Order) comeBackBehind(t *Ticket, s *Servers) {
	q, at, _ := o.queues.find(t)
	for _, behind := range q.waiting[at+1:] {
		if behind.isCounted {
			return // the search ended before it
		}
		behind.comeBack(s)
	}
}

// addRest adds up what is left of the prompts that have begun, by prefill server.
func (o *Order) addRest(s *Servers) {
	for p := range s.Prefill {
		s.Prefill[p].rest, s.Prefill[p].restClass = s.Prefill[p].Rest, 0
	}
	for _, t := range o.begun {
		if t.only >= 0 {
			s.Prefill[t.only].addRest(t, t.only)
			continue
		}
		for p := range t.onPrefill {
			s.Prefill[p].addRest(t, p)
		}
	}
}

// addRest adds what is left of a prompt that has begun, if it may be computed there.
func (p *PrefillState) addRest(t *Ticket, number int) {
	if seconds := t.onPrefill[number].prefill; !math.IsInf(seconds, 1) {
		p.rest, p.restClass = p.rest+seconds, max(p.restClass, t.Class)
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

// isFreeTo says whether a prefill server is about to be free for a request.
func (o *Order) isFreeTo(t *Ticket, p int, s *Servers) bool {
	return o.isFree[p] && !t.awaitsRest(p, &s.Prefill[p])
}

// mayAnyGo says whether any request could go: a prefill server is about to be free, or a decode
// server that has hardly any prompts ahead may compute another one.
func (o *Order) mayAnyGo(s *Servers) bool {
	if len(o.free) > 0 {
		return true
	}
	ahead := o.cfg.AheadOnDecode.Seconds()
	for d := range s.Decode {
		if state := &s.Decode[d]; !state.Excluded && state.Ahead <= ahead {
			return true
		}
	}
	return false
}

// isFree says whether a prefill server is about to be free, with at most so many seconds of work, or to
// begin a step that another prompt is welcome in: all in it share what a step takes whatever is in it.
func (p *PrefillState) isFree(ahead float64) bool {
	return p.Ahead <= ahead || p.Ahead-p.Forming <= ahead && p.Forming < p.StepWork
}

// leastAggregated is less than any decode server costs a request that it computes the prompt of.
func (o *Order) leastAggregated(t *Ticket, s *Servers) float64 {
	streams := t.leastStreamDelay * float64(o.fastestDecode.Running)
	if t.streamsGoOn {
		streams *= 1 - s.StreamDiscount
	}
	return t.leastAggregatedCost + t.leastAggregated*expectedArrivals + streams + o.fastestDecode.leastCost(t)
}

// price is what a second of a request's prefill costs the others.
func (o *Order) price(t *Ticket) float64 { return t.Weights.Price(o.waitingPerServer) }

// oldestOverdue is the first to arrive of the requests that waited too long: of all, and of
// those that no decode server has room for. Nil: there is none.
type oldestOverdue struct{ overdue, lacksKVRoom *Ticket }

// scanWaiting looks for them, moves requests that have become late behind the others of their
// class, and counts for how long requests have left servers free. Without servers (Serve) none lacks room.
func (o *Order) scanWaiting(now time.Duration, s *Servers) (oldest oldestOverdue) {
	o.moved = o.moved[:0]
	elapsed, limits := (now - o.surveyed).Seconds(), o.overdueLimits()
	o.surveyed = now
	for p, isDeclined := range o.isDeclinedFor {
		if isDeclined {
			o.declinedFor[p], o.isDeclinedFor[p] = o.declinedFor[p]+elapsed, false
		}
	}
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
	return oldest
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

// mayGo returns the best pair of a request if it is free, and the best that is free if one has
// been left free for long enough.
func (o *Order) mayGo(t *Ticket, s *Servers) (Pair, bool) {
	if o.goesBehindBest(t, s) {
		return Pair{}, false
	}
	awaited := o.awaitedCost(t, s)
	t.leaves = false
	if o.prefersAwaited(t, s, awaited) {
		o.recordAwaited(t, s)
		return Pair{}, false
	}
	pair, cost := o.bestFree(t, s)
	switch {
	case math.IsInf(cost, 1):
		if !math.IsInf(awaited, 1) {
			o.recordAwaited(t, s)
		}
		return Pair{}, false
	case !(awaited < cost) && !o.isBusyPairBetter(t, s, cost):
		return pair, true
	case !t.followed && s.firstStep(t, pair) <= t.declined:
		t.leaves = true
		return pair, true
	}
	if pair, cost = o.bestFreePair(t, s); !math.IsInf(cost, 1) && s.firstStep(t, pair)+o.delayToWaiting(t, pair.Prefill) <= o.patience(t, s) {
		t.leaves = true
		return pair, true
	}
	o.recordAwaited(t, s)
	return Pair{}, false
}

// goesBehindBest reports whether it is certain that a request may go to a free prefill server, and
// would go behind the best so far wherever that is: then its pair need not be found. Behind a request
// for which its free server is not the best of all stand many others that could go there.
func (o *Order) goesBehindBest(t *Ticket, s *Servers) bool {
	if math.IsInf(o.least, 1) || o.decode < 0 || !s.fitsPair(t, &s.Decode[o.decode]) {
		return false
	}
	price, most := o.price(t), math.Inf(1)
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			return false
		}
		if t.rankOn(p) < o.least {
			return false
		}
		if o.decode != s.Prefill[p].Self {
			most = min(most, s.costOnPair(t, Pair{p, o.decode}, t.on(p), t.mostMissingOn(o.decode), at(t.DecodeReady, o.decode), price))
		}
	}
	if math.IsInf(most, 1) || !(most <= o.leastAggregated(t, s)) {
		return false
	}
	return !o.mayBusyCostLess(t, s, price, most-s.HandOff-o.fastestDecode.leastCost(t))
}

// mayBusyCostLess says whether a server that is not free to any request could cost one less than limit
// with what goes first there and, where that is known, those that wait for it; the second leg and decode's part are
// left out.
func (o *Order) mayBusyCostLess(t *Ticket, s *Servers, price, limit float64) bool {
	behind, factor := t.behindAt(price), o.waitFactor(t)
	for i, p := range behind.servers {
		seconds := behind.seconds[i]
		if seconds >= limit || o.isFree[p] {
			continue
		}
		if seconds += factor * o.beginsIn[p]; seconds < limit && seconds+behind.prefill[i]*s.delayed(&s.Prefill[p]) < limit {
			return true
		}
	}
	if factor*o.soonest+behind.others >= limit {
		return false
	}
	o.soonest = o.soonestBegin()
	return factor*o.soonest+behind.others < limit
}

// followShare is the part of its wait within which a request that follows another one must get its
// first decode step elsewhere. At 1 siblings that come at once would each compute their beginning as
// soon as the first one does, since that takes no longer than to wait for it; and the times that are
// compared are a few per cent off.
const followShare = 0.9

// patience is how long the first decode step may be away on a free prefill server that a request goes
// to, though waiting for a busy one costs it less: as long as it has left a free one, or as others
// have for that busy server since one of them went elsewhere. The latter makes another server
// hold what they share, at no more than the want of it has cost.
//
// One that has followed another request (Ticket.Follows) has not waited in vain. So what counts is what
// is left of its wait, with those that go first: the last of many siblings go where the wait ends
// sooner, and not all of them once they have waited for as long as computing takes. It leaves a free
// server for no longer than four times that all the same.
func (o *Order) patience(t *Ticket, s *Servers) float64 {
	if t.followed {
		return max(t.declined/4, followShare*(o.awaitedWork[t.awaited.Prefill]+s.firstStep(t, t.awaited.Pair)))
	}
	return max(t.declined, o.declinedFor[t.awaited.Prefill])
}

// delayToWaiting is what a request's prefill on a server costs those who wait, without the one
// who is yet to come: where many wait, a server that is free now is not spare.
func (o *Order) delayToWaiting(t *Ticket, p int) float64 {
	waiting := o.waitingPerServer - float64(len(o.free)-1)/float64(len(t.onPrefill))
	return (t.Weights.Price(max(0, waiting)) - t.Weights.Price(0)) * t.on(p).reference
}

// recordAwaited notes that a request waits for the busy pair that it awaits: its prefill goes there
// before those of all behind it. And that it leaves a free server that it could have.
func (o *Order) recordAwaited(t *Ticket, s *Servers) {
	p := t.awaited.Prefill
	o.awaitedWork[p] += t.awaited.work
	o.beginsIn[p] = o.awaitedWork[p] + s.Prefill[p].Ahead
	if slices.ContainsFunc(o.free, func(p int) bool { return !math.IsInf(t.on(p).prefill, 1) }) {
		t.isDeclining, o.isDeclinedFor[p] = true, true
	}
}

// mayStopDeclining says whether a free server could give a request its first decode step within its
// patience, as mayGo counts it but over the nearest link: where many have waited for long, and what
// others would pay keeps them from going, they need no search either.
func (o *Order) mayStopDeclining(t *Ticket, s *Servers) bool {
	if len(o.free) == 0 {
		return false
	}
	limit, step := o.patience(t, s), o.fastestDecode.StepSeconds(t)
	if t.leastPrefill+step > limit {
		return false
	}
	alone := !t.followed && t.leastAggregated+step-rounding <= t.declined
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		ready, _ := s.prefillSide(t, p, t.on(p), 0)
		first := ready + t.on(p).leastTransfer + step
		if first <= limit && (alone || !t.followed && first-rounding <= t.declined || first-rounding+o.delayToWaiting(t, p) <= limit) {
			return true
		}
	}
	return false
}

// prefersAwaited says whether the pair that a request was last seen to wait for, at a cost, is
// better than all that are free: most wait for the same one as before, and need no search.
func (o *Order) prefersAwaited(t *Ticket, s *Servers, cost float64) bool {
	if !(cost < o.leastAggregated(t, s)) || o.mayStopDeclining(t, s) {
		return false
	}
	if len(o.free) == 0 {
		return true
	}
	price, decoding := o.price(t), o.fastestDecode.leastCost(t)
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer+decoding <= cost {
			return false
		}
	}
	return true
}

// awaitedCost is what the pair that a request was last seen to wait for costs it, with what goes
// first there: infinite where it may not wait for that any more.
func (o *Order) awaitedCost(t *Ticket, s *Servers) float64 {
	p, d := t.awaited.Prefill, t.awaited.Decode
	if p == Aggregated || o.isFreeTo(t, p, s) || !s.fitsPair(t, &s.Decode[d]) || !s.mayHave(t, &t.awaited) {
		return math.Inf(1)
	}
	return o.hold(t, p, s) + s.pairCost(t, &t.awaited, o.price(t))
}

// hold is what it costs to wait for a busy server beyond the work ahead of it: see Next.
func (o *Order) hold(t *Ticket, p int, s *Servers) float64 {
	factor := o.waitFactor(t)
	return factor*o.awaitedWork[p] + (factor-1)*s.Prefill[p].Ahead
}

// waitFactor is how many times a predicted wait for a busy server counts: less where many wait, since a free server
// that one of them leaves is taken by another. What a request follows is computed there whoever goes first.
func (o *Order) waitFactor(t *Ticket) float64 {
	if t.followed {
		return 1
	}
	return 1 + o.cfg.WaitMargin/(1+o.waitingPerServer)
}

// bestFree is the best of the pairs that a request could have now, and its cost:
// infinite if there is none.
func (o *Order) bestFree(t *Ticket, s *Servers) (Pair, float64) {
	pair, least := o.bestFreePair(t, s)
	if o.leastAggregated(t, s) >= least {
		return pair, least
	}
	if alone, cost := s.BestAggregated(t, o.cfg.AheadOnDecode.Seconds()); cost < least {
		return alone, cost
	}
	return pair, least
}

// bestFreePair is bestFree of those with a prefill server.
func (o *Order) bestFreePair(t *Ticket, s *Servers) (pair Pair, least float64) {
	price, decoding := o.price(t), o.fastestDecode.leastCost(t)
	least = math.Inf(1)
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		if _, half := s.prefillSide(t, p, t.on(p), price); half+t.on(p).leastTransfer+decoding >= least {
			continue
		}
		if d, cost := s.bestFrom(t, p, t.on(p), price, least); cost < least {
			pair, least, o.decode = Pair{p, d}, cost, d
		}
	}
	return pair, least
}

// rounding is more than sums of the parts of a cost, in seconds, differ by their order.
const rounding = 1e-6

// isBusyPairBetter says whether a server that is not free costs less than limit, with what goes
// first there. The request awaits it then.
func (o *Order) isBusyPairBetter(t *Ticket, s *Servers, limit float64) (found bool) {
	price, decoding := o.price(t), o.fastestDecode.leastCost(t)
	least := o.leastBehind(t, s, price, decoding)
	follows := slices.ContainsFunc(o.free, func(p int) bool { return t.awaitsRest(p, &s.Prefill[p]) })
	factor := o.waitFactor(t)
	if !follows && (factor*o.soonest+least >= limit || !o.mayBusyCostLess(t, s, price, limit-s.HandOff-decoding)) {
		return false
	}
	best := Pair{}
	for _, p := range o.busy {
		if factor*o.beginsIn[p]+least >= limit {
			continue // it need not be priced
		}
		if o.isFreeTo(t, p, s) {
			continue
		}
		hold := o.hold(t, p, s)
		if _, half := s.prefillSide(t, p, t.on(p), price); hold+half+t.on(p).leastTransfer+decoding >= limit {
			continue
		}
		if d, cost := s.bestFrom(t, p, t.on(p), price, limit-hold); hold+cost < limit {
			best, limit, found = Pair{p, d}, hold+cost, true
		}
	}
	if found {
		t.awaited = t.costOfPair(best)
	}
	return found
}

// leastBehind is less than any pair costs a request at a price behind the work ahead of its prefill
// server.
func (o *Order) leastBehind(t *Ticket, s *Servers, price, decoding float64) float64 {
	return s.HandOff + t.leastPrefill + t.leastReference + (price-1)*t.leastBatch + decoding - rounding
}

// soonestBegin is in how many seconds the first of the servers that are not free to any request could
// begin a prompt behind those that wait for it.
func (o *Order) soonestBegin() float64 {
	soonest := math.Inf(1)
	for _, p := range o.busy {
		if seconds := o.beginsIn[p]; seconds < soonest && !o.isFree[p] { // min takes twice as long
			soonest = seconds
		}
	}
	return soonest
}
