package order

import "math"

// look is what one look at all that wait, and at the servers, comes to: it holds until the next request goes. What
// is by prefill server has its number there as the index.
type look struct {
	free   []int  // prefill servers about to be free
	busy   []int  // those that are not, and those that are but not to each request
	isFree []bool // by prefill server, whether it is about to be free

	waitingPerServer float64 // other requests that wait for prefill, for each prefill server
	waitsForPrefill  bool    // decode has room for one that waits

	awaitedWork []float64 // by prefill server, the prefills in seconds of the requests that go first and wait for it
	beginsIn    []float64 // by prefill server, that and the work ahead of it; infinite where it is free
	soonest     float64   // at most the least of beginsIn of those that are free to none

	least         float64     // the rank of the best request so far
	freePair      Pair        // the best pair of the last request for which one with a free prefill server was found; its Decode is -1: none was
	fastestDecode DecodeState // no decode server is faster

	moved   []*Ticket // the requests that have become late
	renewed []*Ticket // the requests that were priced anew

	lackingKVRoom *Ticket // one of the class looked at that decode has no room for
	mostKV        kvMost  // the most KV room that any decode server has
	keepsKVRoom   bool    // a decode server is kept for one request
}

// prepare begins a look.
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
	o.isFree, o.freePair = sized(o.isFree, len(s.Prefill)), Pair{Aggregated, -1}
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

// isFree says whether a prefill server is about to be free, with at most so many seconds of work, or to
// begin a step that another prompt is welcome in: all in it share what a step takes whatever is in it.
func (p *PrefillState) isFree(ahead float64) bool {
	return p.Ahead <= ahead || p.Ahead-p.Forming <= ahead && p.Forming < p.StepWork
}

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
