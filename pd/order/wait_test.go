package order

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// trip is one request that has waited.
type trip struct {
	ticket        *Ticket
	arrived, went float64
	overdue       float64 // when it became so
}

// crossing is a fleet under a mix of arrivals.
type crossing struct {
	cfg     Config
	servers int
	load    float64 // work that arrives over what the servers can do
	trips   []trip
	longest float64 // seconds for which a turn kept a server busy at most
}

// arrive draws requests: most prompts short and some very long, half of them with most of
// their prompt on one of the servers.
func (c *crossing) arrive(rng *rand.Rand, n int, throughput float64) {
	at := 0.0
	for id := range n {
		seconds := math.Exp(1.5 * rng.NormFloat64()) // mean 3 s, one in a hundred above 30 s
		t := &Ticket{ID: int64(id), Arrived: virtual(at), TTFT: 10, Missing: []float64{0}, Class: rng.IntN(2), Tenant: []string{"a", "b"}[rng.IntN(2)]}
		t.Weights = Latency.Weights()
		if rng.Float64() < throughput {
			t.Weights = Throughput.Weights()
		}
		for range c.servers {
			t.Prefill, t.Reference = append(t.Prefill, seconds), append(t.Reference, seconds)
		}
		if rng.IntN(2) == 0 {
			t.Prefill[rng.IntN(c.servers)] /= 3
		}
		c.trips = append(c.trips, trip{ticket: t, arrived: at})
		at += rng.ExpFloat64() * 3 / (c.load * float64(c.servers))
	}
}

// pass lets all of them have their turn.
func (c *crossing) pass() {
	o, now, next, left := New(c.cfg), 0.0, 0, len(c.trips)
	s := &Servers{Gate: true, Decode: []DecodeState{{Step: 0.02}}, Links: NewLinkTable(c.servers, 1)}
	freeAt := make([]float64, c.servers)
	for left > 0 {
		for ; next < len(c.trips) && c.trips[next].arrived <= now; next++ {
			o.Add(c.trips[next].ticket, s.Links)
		}
		for {
			s.Now, s.Prefill = virtual(now), s.Prefill[:0]
			for _, at := range freeAt {
				s.Prefill = append(s.Prefill, PrefillState{Self: -1, Ahead: max(0, at-now)})
			}
			turn, ok := o.Next(s)
			if !ok {
				break
			}
			freeAt[turn.Prefill] = max(freeAt[turn.Prefill], now) + turn.Ticket.Prefill[turn.Prefill]
			c.trips[turn.Ticket.ID].went = now
			c.longest = max(c.longest, freeAt[turn.Prefill]-now)
			left--
		}
		soonest := math.Inf(1)
		if next < len(c.trips) {
			soonest = c.trips[next].arrived
		}
		for _, at := range freeAt {
			if at -= c.cfg.Ahead.Seconds(); at > now {
				soonest = min(soonest, at)
			}
		}
		now = max(soonest, math.Nextafter(now, math.Inf(1))) + 1e-9
	}
	limits := o.overdueLimits()
	for i := range c.trips {
		c.trips[i].overdue = c.trips[i].arrived + limits.of(c.trips[i].ticket)
	}
}

// turns are the times of all turns.
func (c *crossing) turns() (went []float64) {
	for i := range c.trips {
		went = append(went, c.trips[i].went)
	}
	slices.Sort(went)
	return went
}

// longestOf is the longest time that n turns in a row took of those between two times.
func longestOf(turns []float64, n int, from, to float64) (longest float64) {
	first, _ := slices.BinarySearch(turns, from)
	for i := first; i < len(turns) && turns[i] <= to; i++ {
		longest = max(longest, turns[min(i+n, len(turns)-1)]-turns[i])
	}
	return longest
}

// The bound of the package's documentation, for any mix of arrivals, also at twice what the
// servers can do and with no ageing.
func TestOrder_WaitIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := crossing{cfg: DefaultConfig(), servers: rapid.IntRange(1, 4).Draw(t, "servers"), load: rapid.Float64Range(0.5, 2).Draw(t, "load")}
		c.cfg.Ageing = rapid.SampledFrom([]float64{0, c.cfg.Ageing}).Draw(t, "ageing")
		if rapid.Bool().Draw(t, "patient") {
			c.cfg.Patience = virtual(30)
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		c.arrive(rng, 1000, rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "throughput"))
		c.pass()
		turns, n := c.turns(), int(math.Ceil(1/c.cfg.OverdueShare))
		for i := range c.trips {
			x, older := &c.trips[i], 0
			period := longestOf(turns, n, x.overdue, x.went)
			for k := range c.trips[:i] {
				if c.trips[k].went > x.overdue && c.trips[k].overdue < x.went {
					older++
				}
			}
			if bound := x.overdue + float64(older+1)*(period+c.longest); x.went > bound {
				t.Fatalf("request %d of %.1f s waited %.0f s, at most %.0f: %d older, %.0f s for 50 turns, servers busy for %.0f s",
					i, x.ticket.leastPrefill, x.went-x.arrived, bound-x.arrived, older, period, c.longest)
			}
		}
	})
}

// sharing is requests of a few products whose prompts begin alike, on servers that keep what
// they have computed of each.
type sharing struct {
	servers, products int
	shared            float64 // seconds of prefill of what a product's prompts share
	load              float64 // work that arrives over what the servers can do, were all of it shared
}

// shared is a request of a product.
type shared struct {
	ticket  *Ticket
	product int
	own     float64 // seconds of its prefill where the product is known
	idled   float64 // seconds for which it waited while a server was free
	follows bool    // it came while a server computed what its product shares, and none had it
}

// price writes what a request costs on each server; known is when each has computed what a product
// shares, or will have, 0 where it will not.
func (c *sharing) price(r *shared, known [][]float64, now float64) {
	r.ticket.Follows = false
	computed := false
	for p := range c.servers {
		r.ticket.Prefill[p] = r.own
		switch at := known[p][r.product]; {
		case at == 0:
			r.ticket.Prefill[p] += c.shared
		case at > now:
			r.ticket.Follows = true
		default:
			computed = true
		}
		r.ticket.Reference[p] = r.ticket.Prefill[p]
	}
	r.ticket.Follows = r.ticket.Follows && !computed
	r.follows = r.follows || r.ticket.Follows
}

// arrive draws requests and when they come.
func (c *sharing) arrive(rng *rand.Rand, n int, s *Servers) (all []*shared) {
	at := 0.0
	for id := range n {
		t := &Ticket{ID: int64(id), Arrived: virtual(at), Weights: Latency.Weights()}
		t.Resize(len(s.Prefill), len(s.Decode))
		t.Aggregated[0] = math.Inf(1)
		all = append(all, &shared{ticket: t, product: rng.IntN(c.products), own: 0.1 + 0.4*rng.Float64()})
		at += rng.ExpFloat64() * 0.3 / (c.load * float64(c.servers))
	}
	return all
}

// The servers that hold a product's instructions are busy and others are free: no request waits
// for the former longer than one of the latter needs to compute it all, however many wait; four times as
// long if it came while that was being computed for the first time.
func TestOrder_NobodyWaitsLongWhileAServerIsFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := sharing{
			servers: rapid.IntRange(2, 8).Draw(t, "servers"), products: rapid.IntRange(1, 3).Draw(t, "products"),
			shared: rapid.Float64Range(1, 5).Draw(t, "shared"), load: rapid.Float64Range(0.3, 0.9).Draw(t, "load"),
		}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		for _, r := range c.pass(rng) {
			longest := r.own + c.shared
			if r.follows {
				longest *= 4
			}
			if longest += 2 * lookEvery; r.idled > longest {
				t.Fatalf("request %d waited %.1f s while a server was free, at most %.1f s (follows: %v)", r.ticket.ID, r.idled, longest, r.follows)
			}
		}
	})
}

// lookEvery is the seconds between two looks of pass.
const lookEvery = 0.05

// pass lets all of them have their turn.
func (c *sharing) pass(rng *rand.Rand) []*shared {
	s := fleetOf(c.servers, 1)
	all := c.arrive(rng, 400, s)
	o, next, waiting := New(DefaultConfig()), 0, map[int64]*shared{}
	freeAt, known := make([]float64, c.servers), make([][]float64, c.servers)
	for p := range known {
		known[p] = make([]float64, c.products)
	}
	for now := 0.0; next < len(all) || len(waiting) > 0; now += lookEvery {
		s.Now = virtual(now)
		for _, r := range waiting {
			c.price(r, known, now)
			o.Update(r.ticket, s.Links)
		}
		for ; next < len(all) && all[next].ticket.Arrived <= s.Now; next++ {
			c.price(all[next], known, now)
			o.Add(all[next].ticket, s.Links)
			waiting[all[next].ticket.ID] = all[next]
		}
		free := 0
		for p := range s.Prefill {
			s.Prefill[p].Ahead = max(0, freeAt[p]-now)
		}
		for {
			turn, ok := o.Next(s)
			if !ok {
				break
			}
			r := waiting[turn.Ticket.ID]
			delete(waiting, turn.Ticket.ID)
			freeAt[turn.Prefill] = max(freeAt[turn.Prefill], now) + r.ticket.Prefill[turn.Prefill]
			s.Prefill[turn.Prefill].Ahead = freeAt[turn.Prefill] - now
			if known[turn.Prefill][r.product] == 0 {
				known[turn.Prefill][r.product] = freeAt[turn.Prefill]
			}
		}
		for p := range freeAt {
			if freeAt[p] <= now {
				free++
			}
		}
		for _, r := range waiting {
			if free > 0 {
				r.idled += lookEvery
			}
		}
	}
	return all
}

// Requests that share a long beginning come one after the other, and each waits a little for the
// one server that holds it, beside a free one. Once they have waited for as long as the other
// would need, one goes there, and then it is so long again until the next does: what they share is
// computed no oftener than the want of it has cost.
func TestOrder_AFreeServerGetsWhatManyHaveWaitedFor(t *testing.T) {
	const wait, own, elsewhere = 0.3, 0.2, 1.0
	o, s := New(DefaultConfig()), fleetOf(2, 1)
	var went []int
	for id := range 16 {
		at := wait * float64(id)
		k := &Ticket{ID: int64(id), Arrived: virtual(at), Weights: Latency.Weights()}
		k.Resize(2, 1)
		k.Aggregated[0], k.Missing[0] = math.Inf(1), 0
		k.Prefill[0], k.Prefill[1] = own, elsewhere
		copy(k.Reference, k.Prefill)
		o.Add(k, s.Links)
		for _, ahead := range []float64{wait, 0} { // as it comes, and just before the next one
			s.Now, s.Prefill = virtual(at+(wait-ahead)*0.99), []PrefillState{{Ahead: ahead, Self: -1}, {Self: -1}}
			if turn, ok := o.Next(s); ok {
				went = append(went, turn.Prefill)
			}
		}
	}
	if want := []int{0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0}; !slices.Equal(went, want) {
		t.Fatalf("requests went to servers %v, want %v", went, want)
	}
}

// A request whose beginning a busy server computes for another one leaves a free server that would
// compute it anew: for what is left of its wait, not for how long it has waited. It goes where that is
// sooner, and where the busy one gets work again and again, after four times what computing takes.
func TestOrder_WhatFollowsWaitsForWhatIsLeft(t *testing.T) {
	const own, anew = 0.1, 2.1
	for name, c := range map[string]struct {
		ahead func(now float64) float64 // seconds of work of the busy server
		goes  float64                   // to the free server, after so many seconds; negative: it does not
	}{
		"just begun":           {func(now float64) float64 { return 2 - now }, -1},
		"others go first":      {func(float64) float64 { return 5 }, 0},
		"work comes and comes": {func(float64) float64 { return 1 }, 4 * anew},
	} {
		o, s := New(DefaultConfig()), fleetOf(2, 1)
		k := &Ticket{Weights: Latency.Weights(), Follows: true}
		k.price(s, math.Inf(1))
		k.Prefill[0], k.Prefill[1] = own, anew
		copy(k.Reference, k.Prefill)
		o.Add(k, s.Links)
		went, at := -1, 0.0
		for now := 0.0; went < 0 && now < 20; now += lookEvery {
			s.Now, s.Prefill[0].Ahead = virtual(now), c.ahead(now)
			if turn, ok := o.Next(s); ok {
				went, at = turn.Prefill, now
			}
		}
		switch {
		case went < 0:
			t.Errorf("%s: it waits still", name)
		case c.goes < 0 && went != 0:
			t.Errorf("%s: it goes to the free server after %.2f s", name, at)
		case c.goes >= 0 && (went != 1 || math.Abs(at-c.goes) > 3*lookEvery):
			t.Errorf("%s: it goes to server %d after %.2f s, want the free one after %.2f", name, went, at, c.goes)
		}
	}
}

// However long KV under way takes the link of a free server, a request that would rather have a busy one
// leaves it free for no longer than its prefill and transfer take there.
func TestOrder_KVUnderWayLeavesNoServerFreeForLonger(t *testing.T) {
	o, s := New(DefaultConfig()), fleetOf(2, 1)
	k := &Ticket{Weights: Latency.Weights()}
	k.price(s, math.Inf(1))
	k.Prefill[0], k.Prefill[1] = 0.1, 3
	s.Prefill[0].Ahead, s.Prefill[1].Sending.Moving = 1, 10
	o.Add(k, s.Links)
	for seconds := range 12 {
		s.Now = virtual(float64(seconds))
		if turn, ok := o.Next(s); ok {
			if turn.Prefill != 1 || seconds != 4 {
				t.Errorf("it goes to server %d after %d s", turn.Prefill, seconds)
			}
			return
		}
	}
	t.Error("it waits for the busy server still")
}

// So many requests wait that all servers will soon be needed for them: a free one is not given
// away for what a busy one holds.
func TestOrder_AFreeServerIsKeptWhereManyWait(t *testing.T) {
	o, s := New(DefaultConfig()), fleetOf(2, 1)
	for id := range 40 {
		k := &Ticket{ID: int64(id), Weights: Latency.Weights()}
		k.Resize(2, 1)
		k.Aggregated[0], k.Missing[0] = math.Inf(1), 0
		k.Prefill[0], k.Prefill[1] = 0.2, 1
		copy(k.Reference, k.Prefill)
		o.Add(k, s.Links)
	}
	o.declinedFor = []float64{1.5, 0}
	o.isDeclinedFor = make([]bool, 2)
	s.Prefill = []PrefillState{{Ahead: 0.2, Self: -1}, {Self: -1}}
	if turn, ok := o.Next(s); ok {
		t.Fatalf("request %d went to server %d", turn.Ticket.ID, turn.Prefill)
	}
}
