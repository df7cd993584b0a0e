package order

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// plainNext is Next without the shortcuts that leave out a search: each request that may go is given its
// pair, and each busy server is priced.
func plainNext(o *Order, s *Servers) (Turn, bool) {
	o.prepare(s)
	may := func(t *Ticket, _ float64) (Pair, bool) {
		t.passOver(s)
		if o.lacksKVRoom(t, s) {
			return Pair{}, false
		}
		return o.plainMayGo(t, s)
	}
	oldest := o.scanWaiting(s.Now, s)
	o.least = math.Inf(1)
	if !o.mayAnyGo(s) {
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
	if ok {
		o.recordTurn(&turn)
	}
	return turn, ok
}

func (o *Order) plainMayGo(t *Ticket, s *Servers) (Pair, bool) {
	awaited := o.awaitedCost(t, s)
	t.leaves = false
	if o.plainlyPrefersAwaited(t, s, awaited) {
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
	case !(awaited < cost) && !o.plainBusyPairIsBetter(t, s, cost):
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

func (o *Order) plainlyPrefersAwaited(t *Ticket, s *Servers, cost float64) bool {
	if !(cost < o.leastAggregated(t, s)) {
		return false
	}
	step, decoding := o.fastestDecode.StepSeconds(t), o.fastestDecode.leastCost(t)
	alone := !t.followed && t.leastAggregated+step-rounding <= t.declined
	for _, p := range o.free {
		if t.awaitsRest(p, &s.Prefill[p]) {
			continue
		}
		ready, _ := s.prefillSide(t, p, &t.onPrefill[p], 0)
		first := ready + t.onPrefill[p].leastTransfer + step
		if first <= o.patience(t, s) && (alone || !t.followed && first-rounding <= t.declined || first-rounding+o.delayToWaiting(t, p) <= o.patience(t, s)) {
			return false
		}
		if _, half := s.prefillSide(t, p, &t.onPrefill[p], o.price(t)); half+t.onPrefill[p].leastTransfer+decoding <= cost {
			return false
		}
	}
	return true
}

func (o *Order) plainBusyPairIsBetter(t *Ticket, s *Servers, limit float64) (found bool) {
	price, best := o.price(t), Pair{}
	for _, p := range o.busy {
		if o.isFreeTo(t, p, s) {
			continue
		}
		hold := o.hold(t, p, s)
		if d, cost := s.bestFrom(t, p, &t.onPrefill[p], price, limit-hold); hold+cost < limit {
			best, limit, found = Pair{p, d}, hold+cost, true
		}
	}
	if found {
		t.awaited = t.costOfPair(best)
	}
	return found
}

// crowd is an order before servers of which some hold what most prompts begin with: the requests that
// wait for those make others stand behind a free server that is not their best.
type crowd struct {
	o       *Order
	s       *Servers
	tickets []*Ticket
	ids     int64
}

func newCrowd(rng *rand.Rand) *crowd {
	prefills, decodes := 2+rng.IntN(6), 1+rng.IntN(4)
	c := &crowd{o: New(DefaultConfig()), s: &Servers{Gate: true, HandOff: 0.002, Links: NewLinkTable(prefills, decodes), Prefill: make([]PrefillState, prefills), Decode: make([]DecodeState, decodes)}}
	for i := range c.s.Links.Latency {
		c.s.Links.Latency[i], c.s.Links.SecondsPerByte[i] = 0.002*rng.Float64(), 1e-10*(1+rng.Float64())
	}
	for p := range c.s.Prefill {
		c.s.Prefill[p].Self = -1
		if rng.IntN(8) == 0 {
			c.s.Prefill[p].Self, c.s.Prefill[p].Stalls = rng.IntN(decodes), rng.IntN(3)
		}
	}
	return c
}

// change moves the time on, and the servers and some costs with it.
func (c *crowd) change(rng *rand.Rand) {
	c.s.Now += time.Duration(rng.IntN(2000)) * time.Millisecond
	c.s.Start = Pair{rng.IntN(len(c.s.Prefill)), rng.IntN(len(c.s.Decode))}
	for p := range c.s.Prefill {
		state := &c.s.Prefill[p]
		state.Ahead = []float64{0, 0, 0.03, 0.3, 1, 3}[rng.IntN(6)]
		state.Rest, state.Sending = 0, []LinkUse{{}, {}, {Moving: 1}, {Coming: 1, ComesIn: 0.1}}[rng.IntN(4)]
		if rng.IntN(6) == 0 {
			state.Rest = rng.Float64()
		}
		state.Excluded = rng.IntN(12) == 0
	}
	for d := range c.s.Decode {
		c.s.Decode[d] = DecodeState{
			Ahead: []float64{0, 0.04, 0.5}[rng.IntN(3)], Step: 0.02 + 0.01*rng.Float64(), PerToken: 1e-8, Used: 100_000, Running: rng.IntN(20),
			KVRoom: rng.IntN(50_000), KVComing: rng.IntN(3) * 20_000, KVComesIn: 3 * rng.Float64(), Excluded: rng.IntN(12) == 0, GoesOn: rng.IntN(2) == 0,
		}
	}
	for range rng.IntN(6) {
		c.arrive(rng)
	}
	for _, t := range c.tickets {
		if rng.IntN(8) == 0 {
			c.price(rng, t)
			c.o.Update(t, c.s.Links)
		}
	}
}

func (c *crowd) arrive(rng *rand.Rand) {
	t := c.newcomer(rng)
	c.o.Add(t, c.s.Links)
	c.tickets = append(c.tickets, t)
}

// newcomer is a request that does not wait yet.
func (c *crowd) newcomer(rng *rand.Rand) *Ticket {
	c.ids++
	t := &Ticket{
		ID: c.ids, Arrived: c.s.Now, Output: 300, Tokens: 1000 + rng.IntN(20_000), TTFT: []float64{0, 0, 5}[rng.IntN(3)],
		Weights: []Objective{Latency, Latency, Throughput}[rng.IntN(3)].Weights(), Class: rng.IntN(5) / 4, Tenant: []string{"", "", "a"}[rng.IntN(3)],
	}
	c.price(rng, t)
	return t
}

// price lets the servers with low numbers hold more of the prompt than the others.
func (c *crowd) price(rng *rand.Rand, t *Ticket) {
	whole := float64(t.Tokens) * 1e-4
	t.Resize(len(c.s.Prefill), len(c.s.Decode))
	t.Follows = false
	for p := range t.Prefill {
		seconds := whole
		if p < 2 && rng.IntN(4) > 0 {
			seconds *= 0.3 + 0.3*float64(p)
		}
		t.Prefill[p], t.Reference[p], t.FollowsOn[p] = seconds, seconds, rng.IntN(10) == 0
		t.Follows = t.Follows || t.FollowsOn[p]
	}
	for d := range t.Missing {
		t.Missing[d], t.Aggregated[d], t.Stall[d] = float64(t.Tokens)*1e5, math.Inf(1), 0
		if rng.IntN(4) == 0 {
			t.Aggregated[d] = whole
		}
	}
}

// work is the seconds of prefill that wait, and the tokens of KV that they need.
func (c *crowd) work() (seconds float64, kv int) {
	for _, t := range c.o.All(nil) {
		seconds += t.leastWork
		kv += t.kv
	}
	return seconds, kv
}

// copied is the same crowd in memory of its own.
func (c *crowd) copied() *crowd {
	servers, order := *c.s, *c.o
	servers.Prefill, servers.Decode = slices.Clone(c.s.Prefill), slices.Clone(c.s.Decode)
	order.declinedFor, order.isDeclinedFor = slices.Clone(c.o.declinedFor), slices.Clone(c.o.isDeclinedFor)
	order.free, order.busy, order.isFree, order.awaitedWork, order.beginsIn, order.moved = nil, nil, nil, nil, nil, nil
	order.queues = tenantQueues{of: make(map[queueKey]*tenantQueue)}
	to := &crowd{s: &servers, o: &order}
	of := make(map[*Ticket]*Ticket)
	for _, t := range c.tickets {
		ticket := *t
		of[t] = &ticket
		to.tickets = append(to.tickets, &ticket)
	}
	for _, q := range c.o.queues.sorted {
		queue := &tenantQueue{queueKey: q.queueKey, served: q.served}
		for _, t := range q.waiting {
			queue.waiting = append(queue.waiting, of[t])
		}
		order.queues.sorted = append(order.queues.sorted, queue)
		order.queues.of[q.queueKey] = queue
	}
	return to
}

// Where nobody can be late a newcomer is let in without a look at those behind it: that lets in, and
// sends away, whom a look at all of them does.
func TestAdmit_LooksBehindTheNewcomerWhereSomeoneCouldBeLate(t *testing.T) {
	let, displaced, refused := 0, 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		c := newCrowd(rng)
		patience := []time.Duration{time.Second, 10 * time.Second, time.Minute}[rng.IntN(3)]
		for range 40 {
			c.change(rng)
			k := c.newcomer(rng)
			k.Latest = c.s.Now + time.Duration(rng.Int64N(int64(patience)))
			forecast := Forecast{Margin: func(in time.Duration) time.Duration { return in }, Supported: func(seconds float64, _ int) float64 { return min(seconds, 0.5) }}
			plain, plainly := c.copied(), *k
			plain.o.firstLatest = math.MinInt64 // whoever waits may be late
			wantIn, wantGone, want := plain.o.Admit(&plainly, plain.s, forecast)
			in, gone, ok := c.o.Admit(k, c.s, forecast)
			if ok != want || in != wantIn || !slices.EqualFunc(gone, wantGone, func(a, b *Ticket) bool { return a.ID == b.ID }) {
				t.Fatalf("seed %d: let in %v in %v, sent away %d; a look at all: %v in %v, %d", seed, ok, in, len(gone), want, wantIn, len(wantGone))
			}
			if sum, kv := c.work(); math.Abs(sum-c.o.work) > rounding || kv != c.o.kv {
				t.Fatalf("seed %d: %g s of prefill and %d tokens wait, kept are %g and %d", seed, sum, kv, c.o.work, c.o.kv)
			}
			if displaced += len(gone); !ok {
				refused++
			} else {
				let++
				c.tickets = append(c.tickets, k)
			}
			c.tickets = slices.DeleteFunc(c.tickets, func(k *Ticket) bool { return slices.Contains(gone, k) })
			if turn, goes := c.o.Next(c.s); goes {
				c.tickets = slices.DeleteFunc(c.tickets, func(k *Ticket) bool { return k == turn.Ticket })
			}
		}
	}
	if let < 1000 || displaced < 50 || refused < 100 {
		t.Fatalf("%d let in, %d sent away, %d refused: too few to say anything", let, displaced, refused)
	}
}

// What is left out of a look changes nothing: neither which request goes, nor where, nor what is
// remembered of those that wait.
func TestOrder_ShortcutsChangeNothing(t *testing.T) {
	went, left := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := newCrowd(rng)
		for range 40 {
			c.change(rng)
			if c.o.Len() == 0 {
				continue
			}
			plain := c.copied()
			want, wants := plainNext(plain.o, plain.s)
			got, goes := c.o.Next(c.s)
			if goes != wants || goes && (got.Ticket.ID != want.Ticket.ID || got.Pair != want.Pair || got.Overdue != want.Overdue || got.Ticket.leaves != want.Ticket.leaves) {
				t.Fatalf("seed %d: %+v (%v), plainly %+v (%v)", seed, got, goes, want, wants)
			}
			for i, k := range c.tickets {
				if p := plain.tickets[i]; k.awaited != p.awaited || k.isDeclining != p.isDeclining || k.declined != p.declined || k.late != p.late {
					t.Fatalf("seed %d: request %d awaits %+v (leaves one free: %v), plainly %+v (%v)", seed, k.ID, k.awaited, k.isDeclining, p.awaited, p.isDeclining)
				}
			}
			if !slices.Equal(c.o.awaitedWork, plain.o.awaitedWork) || !slices.Equal(c.o.isDeclinedFor, plain.o.isDeclinedFor) || !slices.Equal(c.o.declinedFor, plain.o.declinedFor) {
				t.Fatalf("seed %d: work that waits %v, plainly %v", seed, c.o.awaitedWork, plain.o.awaitedWork)
			}
			left += c.o.Len()
			if goes {
				went++
				c.tickets = slices.DeleteFunc(c.tickets, func(k *Ticket) bool { return k == got.Ticket })
			}
		}
	}
	if went < 1000 || left < 1000 {
		t.Fatalf("%d went and %d waited: too few to say anything", went, left)
	}
}

// A request that comes alone goes where it would if it were let in to wait first, and leaves the same behind; where it
// would have to wait, it is let in as if nobody had asked.
func TestNextAlone_IsAddAndNextWhereNobodyWaits(t *testing.T) {
	went, waited := 0, 0
	for seed := range uint64(600) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := newCrowd(rng)
		for range 20 {
			c.change(rng)
			for _, k := range c.tickets {
				c.o.Remove(k)
			}
			c.tickets = nil
			c.o.overdueCredit = float64(rng.IntN(2))
			k := c.newcomer(rng)
			k.Arrived -= time.Duration(rng.IntN(3)) * 20 * time.Second
			plain, plainly := c.copied(), *k
			plain.o.Add(&plainly, plain.s.Links)
			want, wants := plain.o.Next(plain.s)
			if wants {
				plain.o.Next(plain.s) // which finds nobody
			}
			got, goes := c.o.NextAlone(k, c.s)
			if alone := goes; !alone {
				if c.o.Len() != 0 {
					t.Fatalf("seed %d: it waits though it was not let in", seed)
				}
				c.o.Add(k, c.s.Links)
				if got, goes = c.o.Next(c.s); goes {
					c.o.Next(c.s)
				} else {
					waited++
				}
			} else {
				went++
			}
			if got.Ticket, want.Ticket = nil, nil; goes != wants || got != want {
				t.Fatalf("seed %d: %+v (%v), let in first %+v (%v)", seed, got, goes, want, wants)
			}
			if k.awaited != plainly.awaited || k.leaves != plainly.leaves || k.isDeclining != plainly.isDeclining {
				t.Fatalf("seed %d: awaits %+v, let in first %+v", seed, k.awaited, plainly.awaited)
			}
			was, is := plain.o, c.o
			if is.Len() != was.Len() || is.overdueCredit != was.overdueCredit || is.gaps != was.gaps || is.rate != was.rate || is.surveyed != was.surveyed ||
				!slices.Equal(is.went, was.went) || !slices.Equal(is.declinedFor, was.declinedFor) || !slices.Equal(is.isDeclinedFor, was.isDeclinedFor) {
				t.Fatalf("seed %d: it leaves other things behind than one that was let in first", seed)
			}
			if c.o.Len() > 0 {
				c.tickets = append(c.tickets, k)
			}
		}
	}
	if went < 1000 || waited < 1000 {
		t.Fatalf("%d went at once and %d waited: too few to say anything", went, waited)
	}
}
