package order

import (
	"container/heap"
	"math"
	"slices"
	"sort"
	"time"
)

// Forecast says what a wait is predicted by.
type Forecast struct {
	// Margin turns a predicted wait into the longest one to expect, so that a request that is
	// admitted can rely on its turn.
	Margin func(time.Duration) time.Duration
	// Supported is how many of so many predicted seconds of prefill, of so many works, are supported
	// by what servers have shown. nil: all.
	Supported func(seconds float64, works int) float64
	// Promises: who is let in is promised its turn by Latest, as where a deadline follows from it. Then waiting requests
	// are not taken to be served faster than prefill servers do by prediction: that decode servers compute prompts
	// too, now, is no promise that they will.
	Promises bool
}

// pace is the rate at which waiting requests are served, where so much is expected before anything is known.
func (f *Forecast) pace(r *serviceRate, expected float64) float64 {
	if f.Promises {
		return min(1, r.ratio(1))
	}
	return r.ratio(expected)
}

// supported is Supported where it is set.
func (f *Forecast) supported(seconds float64, works int) float64 {
	if f.Supported == nil {
		return seconds
	}
	return f.Supported(seconds, works)
}

// supportedWork is so much of what a request takes from a server as is supported.
func (f *Forecast) supportedWork(t *Ticket) float64 {
	if f.Supported == nil || t.leastPrefill <= 0 {
		return t.leastWork
	}
	return t.leastWork * f.Supported(t.leastPrefill, 1) / t.leastPrefill
}

// Admit lets a request wait if its prefill is predicted to begin by t.Latest, and returns the
// predicted wait. A request is refused only by what is supported of the prediction: refused it
// would teach nothing, so that one which is far too long would never be corrected.
//
// A newcomer may delay another request beyond that request's Latest only if the other has less
// claim to a place: it is of a lower class, is late for its objective, or belongs to a tenant that
// has more work waiting. Such requests give way: they are removed and returned. Requests that
// would be too late without the newcomer as well are left alone. If ok is false the newcomer does
// not wait, and nothing has changed.
func (o *Order) Admit(t *Ticket, s *Servers, f Forecast) (hold time.Duration, gaveWay []*Ticket, ok bool) {
	o.Add(t, s.Links)
	all := func(seconds float64, _ int) float64 { return seconds }
	predicted := o.renewBacklog(&o.predicted, t.kv, s, all, f.pace(&o.rate, 1))
	nobodyIsLate := func(longest time.Duration) bool {
		return s.Now+f.Margin(longest) <= t.latest() && s.Now+longest <= o.firstLatest
	}
	// What is supported of the prediction is no more than all of it, which is all that most requests need.
	if longest := predicted.startsIn(o.mostWork(), o.kv); longest >= 0 && nobodyIsLate(longest+time.Microsecond) { // its rounding
		return predicted.startsIn(o.aheadOf(t)), nil, true
	}
	supported := o.renewBacklog(&o.supported, t.kv, s, f.supported, f.pace(&o.rate, s.fastestPace(t)))
	longest := supported.startsIn(o.mostWork(), o.kv) // no more of any work is supported
	if nobodyIsLate(longest) {
		return predicted.startsIn(o.aheadOf(t)), nil, true
	}
	inAll, before, kv, behind := 0.0, 0.0, 0, false // work of which is supported: before
	newcomer, own, firstLatest := newcomer{Ticket: t}, f.supportedWork(t), time.Duration(math.MaxInt64)
	for q, w := range o.served {
		work := f.supportedWork(w)
		firstLatest = min(firstLatest, w.latest())
		switch {
		case w == t:
			hold, behind = predicted.startsIn(inAll, kv+t.kv), true
			if s.Now+f.Margin(supported.startsIn(before, kv+t.kv)) > t.latest() {
				o.Remove(t)
				return hold, nil, false
			}
			if s.Now+longest <= o.firstLatest {
				return hold, nil, true // nobody behind it is late
			}
			newcomer.work = q.work()
		case behind && s.Now+supported.startsIn(before, kv+w.kv) > w.latest() && s.Now+supported.startsIn(before-own, kv+w.kv-t.kv) <= w.latest():
			if !newcomer.tryDisplace(w, q) {
				o.Remove(t)
				return hold, nil, false
			}
			gaveWay = append(gaveWay, w)
			continue
		}
		inAll += w.leastWork
		before += work
		kv += w.kv
	}
	o.work, o.firstLatest = inAll, firstLatest
	for _, w := range gaveWay {
		o.Remove(w)
		o.work += w.leastWork // it is not in the sum
	}
	return hold, gaveWay, true
}

// GiveUp removes and returns the requests that wait for nothing: what is supported of the prediction has said for so long,
// at each call, that their prefills begin too late. It is for what shows only once they wait: how long steps of a full
// batch take, that answers are longer than usual, or that a server is gone. One that was promised its turn keeps it.
func (o *Order) GiveUp(s *Servers, f Forecast, after time.Duration) (late []TooLate) {
	o.forecasts++
	if o.size == 0 {
		return nil
	}
	pace := f.pace(&o.rate, s.fastestPace(o.queues.sorted[0].waiting[0])) // a burst of requests is of one kind
	b := o.renewBacklog(&o.supported, o.kv/o.size, s, f.supported, pace)
	if s.Now+f.Margin(b.startsIn(o.mostWork(), o.kv)) <= o.firstLatest {
		return nil
	}
	before, kv := 0.0, 0 // of those that wait on
	for _, w := range o.served {
		starts := b.startsIn(before, kv+w.kv)
		if !w.Promised && s.Now+f.Margin(starts) > w.latest() {
			if w.lateAt != o.forecasts-1 {
				w.lateSince = s.Now
			}
			if w.lateAt = o.forecasts; s.Now-w.lateSince >= after {
				late = append(late, TooLate{w, s.Now + starts - w.latest()})
				continue
			}
		}
		before, kv = before+f.supportedWork(w), kv+w.kv
	}
	for _, w := range late {
		o.Remove(w.Ticket)
	}
	return late
}

// TooLate is a request that would begin so much too late.
type TooLate struct {
	*Ticket
	By time.Duration
}

// aheadOf is the seconds of prefill that go before a request which waits, and the tokens of KV that they and it need.
func (o *Order) aheadOf(t *Ticket) (work float64, kv int) {
	for _, w := range o.served {
		if w == t {
			break
		}
		work, kv = work+w.leastWork, kv+w.kv
	}
	return work, kv + t.kv
}

// ServiceTime is how long the servers together take for a request, by what Admit saw last: its share of prefill, or of KV
// room where that takes longer.
func (o *Order) ServiceTime(t *Ticket) time.Duration {
	b, seconds := &o.predicted, 0.0
	if servers := len(b.ahead); servers > 0 {
		seconds = t.leastWork / (b.pace * float64(servers))
	}
	if b.kv.again > 0 && o.kv > b.kv.room {
		seconds = max(seconds, float64(t.kv)/b.kv.again)
	}
	return time.Duration(seconds * float64(time.Second))
}

// mostWork is at least the seconds of prefill that wait, by more than sums differ by their order.
func (o *Order) mostWork() float64 { return o.work + 1e-9*math.Abs(o.work) + rounding }

// newcomer is a request for which others may have to give way.
type newcomer struct {
	*Ticket
	work float64                  // seconds of prefill that wait in its queue, with its own
	left map[*tenantQueue]float64 // of queues whose requests were to give way: the seconds that still wait
}

// tryDisplace reports whether a waiting request has less claim to a place than the newcomer. If so
// it is counted as gone.
func (n *newcomer) tryDisplace(w *Ticket, q *tenantQueue) bool {
	switch {
	case w.Class != n.Class:
		return w.Class > n.Class
	case w.late != n.late:
		return w.late
	case w.Tenant == n.Tenant:
		return false
	}
	if n.left == nil {
		n.left = make(map[*tenantQueue]float64)
	}
	work, known := n.left[q]
	if !known {
		work = q.work()
	}
	n.left[q] = work - w.leastWork
	return n.left[q] >= n.work
}

// served yields the requests that wait, with their queues, in the order in which they will go if
// no other arrives and all servers are equally good: by class, within it those that are late
// last, then the request of the tenant that will have been served least by then.
func (o *Order) served(yield func(*tenantQueue, *Ticket) bool) {
	for rest := o.queues.sorted; len(rest) > 0; {
		end := sort.Search(len(rest), func(i int) bool { return !rest[i].takesTurnsWith(rest[0]) })
		if !serveInTurn(rest[:end], yield) {
			return
		}
		rest = rest[end:]
	}
}

// serveInTurn yields the requests of queues that are beside one another, false if it was stopped.
// The first request of each queue comes as the queues are sorted, so that many tenants with
// one request cost no more than one with many.
func serveInTurn(beside []*tenantQueue, yield func(*tenantQueue, *Ticket) bool) bool {
	if len(beside) == 1 {
		for _, t := range beside[0].waiting {
			if !yield(beside[0], t) {
				return false
			}
		}
		return true
	}
	var again furtherTurns
	for first := 0; first < len(beside) || len(again) > 0; {
		if first < len(beside) && (len(again) == 0 || beside[first].served < again[0].served) {
			q := beside[first]
			if !yield(q, q.waiting[0]) {
				return false
			}
			if len(q.waiting) > 1 {
				heap.Push(&again, &furtherTurn{line: q, place: first, next: 1, served: q.served + q.waiting[0].leastWork})
			}
			first++
			continue
		}
		turn := again[0]
		t := turn.line.waiting[turn.next]
		if !yield(turn.line, t) {
			return false
		}
		turn.served += t.leastWork
		if turn.next++; turn.next < len(turn.line.waiting) {
			heap.Fix(&again, 0)
		} else {
			heap.Pop(&again)
		}
	}
	return true
}

// furtherTurn is the next request of a queue that had a turn.
type furtherTurn struct {
	line   *tenantQueue
	place  int     // of the queue among those beside it
	next   int     // request of the queue
	served float64 // seconds of prefill that the tenant will have been given by then
}

// furtherTurns is a heap: the tenant that was served least comes first.
type furtherTurns []*furtherTurn

func (f furtherTurns) Len() int      { return len(f) }
func (f furtherTurns) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f furtherTurns) Less(i, j int) bool {
	return f[i].served < f[j].served || f[i].served == f[j].served && f[i].place < f[j].place
}
func (f *furtherTurns) Push(turn any) { *f = append(*f, turn.(*furtherTurn)) } //nolint:forcetypeassert // heap's
func (f *furtherTurns) Pop() any {
	last := len(*f) - 1
	turn := (*f)[last]
	*f = (*f)[:last]
	return turn
}

// latest is the moment by which its prefill must begin.
func (t *Ticket) latest() time.Duration {
	if t.Latest == 0 {
		return math.MaxInt64
	}
	return t.Latest
}

// LeastTTFT returns the shortest predicted time, in seconds, from the beginning of a request's
// prefill to its first token on any servers; +Inf if no server can take it.
func (s *Servers) LeastTTFT(t *Ticket) float64 {
	t.derive(s.Links)
	least, step := math.Inf(1), s.fastestDecode().Step
	goesOn := slices.ContainsFunc(s.Decode, func(d DecodeState) bool { return d.GoesOn && !d.Excluded })
	for p := range s.Prefill {
		state, behind := &s.Prefill[p], s.HandOff+t.onPrefill[p].leastTransfer+step
		if t.FirstFromPrefill && goesOn && state.SaysFirst {
			behind = t.held(behind)
		}
		if !state.Excluded {
			least = min(least, at(t.PrefillReady, p)+t.Prefill[p]+behind)
		}
	}
	for d := range s.Decode {
		if !s.Decode[d].Excluded {
			least = min(least, at(t.DecodeReady, d)+t.Aggregated[d]+step)
		}
	}
	return least
}

// backlog is the work ahead of the servers that prefill, as basins of which the lowest
// fills first: what waits goes where it can begin soonest. And what decode has KV room for.
type backlog struct {
	pace    float64
	ahead   []float64 // seconds by server, least first
	filling []float64 // work, in seconds, with which all before a server have as much ahead as it
	kv      kvSupply
}

// renewBacklog makes a backlog of what is supported of the work ahead, for requests of so many tokens of KV.
func (o *Order) renewBacklog(b *backlog, kv int, s *Servers, supported func(seconds float64, works int) float64, pace float64) *backlog {
	*b = backlog{pace: pace, ahead: b.ahead[:0], filling: b.filling[:0], kv: kvSupply{ends: b.kv.ends}}
	for seconds, works := range s.eachWorkAhead {
		b.ahead = append(b.ahead, supported(seconds, works))
	}
	slices.Sort(b.ahead)
	sum := 0.0
	for i, ahead := range b.ahead {
		b.filling = append(b.filling, float64(i)*ahead-sum)
		sum += ahead
	}
	if supported(1, 1) > 0 { // of answers too something is known
		b.kv = o.kvSupply(b.kv.ends[:0], kv, s)
	}
	return b
}

// fastestPace is the rate at which waiting requests may be served at best: decode servers compute prompts like
// this one too, all the time. What they do of it depends on how many wait, and on their streams.
func (s *Servers) fastestPace(t *Ticket) float64 {
	prefills, decodes := 0, 0.0
	for p := range s.Prefill {
		if state := &s.Prefill[p]; !state.Excluded {
			prefills++
			if state.Self >= 0 && state.Self < len(s.Decode) {
				decodes -= s.paceAlone(t, state.Self) // it is the same server
			}
		}
	}
	if prefills == 0 {
		return 1
	}
	for d := range s.Decode {
		decodes += s.paceAlone(t, d)
	}
	return 1 + max(0, decodes)/float64(prefills)
}

// paceAlone is how fast a decode server computes a prompt, as a share of what a prefill server does.
func (s *Servers) paceAlone(t *Ticket, d int) float64 {
	if s.Decode[d].Excluded || !(t.Aggregated[d] > 0) {
		return 0
	}
	return min(1, t.leastPrefill/t.Aggregated[d])
}

// eachWorkAhead yields the work ahead of each prefill server that may be chosen, in seconds and
// requests, or where there are none of each decode server.
func (s *Servers) eachWorkAhead(yield func(seconds float64, works int) bool) {
	prefills := false
	for i := range s.Prefill {
		if p := &s.Prefill[i]; !p.Excluded {
			prefills = true
			if !yield(p.Ahead, p.Queued) {
				return
			}
		}
	}
	for i := range s.Decode {
		if d := &s.Decode[i]; !prefills && !d.Excluded && !yield(d.Ahead, d.Queued) {
			return
		}
	}
}

// startsIn is in how long the next begins after so many seconds of prefill that wait, where those that do and it need
// so much KV: it waits for both at once.
func (b *backlog) startsIn(work float64, kv int) time.Duration {
	seconds := 0.0
	if len(b.ahead) > 0 { // else nothing is known: all are out for the moment
		work /= b.pace
		k := max(1, sort.SearchFloat64s(b.filling, work)) // that many are filled
		level := (work - b.filling[k-1]) / float64(k)
		seconds = b.ahead[k-1] + level
	}
	return time.Duration(max(seconds, b.kv.wait(kv)) * float64(time.Second))
}
