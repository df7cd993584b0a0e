package cost

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/order"
)

// Alternative is one way to run a request and what it is predicted to cost.
// Prefill is empty when the decode server runs alone.
type Alternative struct {
	Prefill string
	Decode  string
	Terms   Terms
	// Misses is how many objectives it is predicted to miss: the request's own, and those
	// of streams that stand still while decode computes the prompt. One that misses fewer
	// wins, whatever the times.
	Misses int
	// Price is what a second of prefill cost waiting requests, when it was chosen.
	Price float64
}

// before reports whether a is the better one.
func (a *Alternative) before(b *Alternative) bool {
	if a.Misses != b.Misses {
		return a.Misses < b.Misses
	}
	return a.Terms.Total() < b.Terms.Total()
}

// Terms are the parts of an alternative's cost. Ready to Step are the time until decode has done
// its first step.
type Terms struct {
	Ready            time.Duration // until both servers can take the request: adapters to load
	Queue            time.Duration // work ahead on the server that prefills
	Prefill          time.Duration
	Transfer         time.Duration // KV on the link, and the second leg
	KVRoom           time.Duration // until the decode server has KV room
	Step             time.Duration // one decode step there
	DecodeCost       time.Duration // its own decoding, and the slower decoding of others, at what they are worth
	DelayToOthers    time.Duration // requests that wait for prefill wait longer; on a decode server its batch stalls
	HardwareMismatch time.Duration // the plan gives requests of its lengths to other hardware: see hardwareMismatches
	Eviction         time.Duration // its KV takes the place of what is likelier to come back: see eviction
	FirstFromPrefill bool          // prefill says the first token: Transfer to Step, but for Held, come behind it
	Held             time.Duration // the part of these for which prefill's token is held, so that the gap behind it meets the objective
}

// TTFT is the part of it that the client waits for before the first token.
func (t *Terms) TTFT() time.Duration { return t.FirstStep() - t.FirstGap() }

// PrefilledIn is the time until the prompt is prefilled.
func (t *Terms) PrefilledIn() time.Duration { return t.Ready + t.Queue + t.Prefill }

// FirstStep is the time until decode has done its first step.
func (t *Terms) FirstStep() time.Duration {
	return t.PrefilledIn() + t.Transfer + t.KVRoom + t.Step
}

// FirstGap is the part of it that lies between the first and the second token, 0 where decode
// says the first one.
func (t *Terms) FirstGap() time.Duration {
	if !t.FirstFromPrefill {
		return 0
	}
	return t.Transfer + t.KVRoom + t.Step - t.Held
}

// Total is what alternatives are compared by.
func (t *Terms) Total() time.Duration {
	return t.FirstStep() + t.DecodeCost + t.DelayToOthers + t.HardwareMismatch + t.Eviction
}

// pricing is what one choice works with; used again it allocates nothing.
type pricing struct {
	servers order.Servers
	ticket  order.Ticket
}

var pricings = sync.Pool{New: func() any { return new(pricing) }}

// put writes down a request that is bound now, and the servers that it may use.
func (w *pricing) put(m *Model, r Demand, f *Candidates) {
	m.PriceServers(f, &w.servers)
	m.PriceRequest(r, f, &w.ticket)
	w.servers.Now, w.ticket.Arrived = r.Waited, 0
}

// Choose binds a request at once: to the alternative with the least predicted cost among
// those that miss the fewest objectives, false if there is none. Of those that cost about the
// same it is the request's Home; tie returns a number below n and lets the others share.
func (m *Model) Choose(r Demand, f *Candidates, tie func(n int) int) (best Alternative, found bool) {
	w := pricings.Get().(*pricing)
	defer pricings.Put(w)
	w.put(m, r, f)
	w.servers.Start = order.Pair{Prefill: tie(max(len(f.Prefill), 1)), Decode: tie(max(len(f.Decode), 1))}
	price := arrivalPrice(&w.servers, &w.ticket)
	if m.Rule != "" && m.Rule != Joint {
		pair, ok := m.Rule.pick(&w.servers, &w.ticket, m.nextTurn(), func() float64 { return float64(tie(1<<20)) / (1 << 20) })
		if !ok {
			return Alternative{}, false
		}
		return f.Alternative(&w.servers, &w.ticket, pair, price), true
	}
	pair, cost := w.servers.Best(&w.ticket, price)
	if math.IsInf(cost, 1) {
		return Alternative{}, false
	}
	pair = f.Settle(&w.servers, &w.ticket, r.Home, pair, price)
	return f.Alternative(&w.servers, &w.ticket, pair, price), true
}

// nextTurn counts the choices of a rule that takes servers by turns.
func (m *Model) nextTurn() uint64 {
	if m.Rule != RoundRobin || m.turns == nil {
		return 0
	}
	return m.turns.Add(1)
}

// Alternative says a pair's cost as people read it.
func (f *Candidates) Alternative(s *order.Servers, t *order.Ticket, pair order.Pair, price float64) Alternative {
	terms := s.Terms(t, pair, price)
	a := Alternative{Decode: f.Decode[pair.Decode].ID, Misses: terms.Misses, Price: price, Terms: Terms{
		Ready: Duration(terms.Ready), Queue: Duration(terms.Ahead), Prefill: Duration(terms.Prefill), Transfer: Duration(terms.Transfer),
		KVRoom: Duration(terms.KVRoom), Step: Duration(terms.Step), DecodeCost: Duration(terms.DecodeCost), DelayToOthers: Duration(terms.DelayToOthers), HardwareMismatch: Duration(terms.HardwareMismatch),
		Eviction: Duration(terms.Eviction), FirstFromPrefill: terms.FirstFromPrefill, Held: Duration(terms.Held),
	}}
	if pair.Prefill != order.Aggregated {
		a.Prefill = f.Prefill[pair.Prefill].ID
	}
	return a
}

// Duration converts seconds; more than 1e9 of them are 1e9.
func Duration(seconds float64) time.Duration {
	return time.Duration(min(seconds, maxSeconds) * float64(time.Second))
}

const maxSeconds = 1e9 // beyond it a time.Duration overflows

// PricePair prices one way to run the request, false if it is none: decode alone where
// prefill is "".
func (m *Model) PricePair(r Demand, f *Candidates, prefill, decode string) (Alternative, bool) {
	pair := order.Pair{Prefill: order.Aggregated, Decode: IndexOf(f.Decode, decode)}
	if prefill != "" {
		pair.Prefill = IndexOf(f.Prefill, prefill)
	}
	if pair.Decode < 0 || prefill != "" && pair.Prefill < 0 {
		return Alternative{}, false
	}
	w := pricings.Get().(*pricing)
	defer pricings.Put(w)
	w.put(m, r, f)
	if !w.servers.Possible(&w.ticket, pair) {
		return Alternative{}, false
	}
	return f.Alternative(&w.servers, &w.ticket, pair, arrivalPrice(&w.servers, &w.ticket)), true
}

// DecodeAlternatives prices the request on each decode server with one prefill server, or alone
// where that is "": those that can take it, the cheapest first.
func (m *Model) DecodeAlternatives(r Demand, f *Candidates, prefill string) []Alternative {
	from := order.Aggregated
	if prefill != "" {
		if from = IndexOf(f.Prefill, prefill); from < 0 {
			return nil
		}
	}
	w := pricings.Get().(*pricing)
	defer pricings.Put(w)
	w.put(m, r, f)
	price := arrivalPrice(&w.servers, &w.ticket)
	all := make([]Alternative, 0, len(f.Decode))
	for d := range f.Decode {
		if pair := (order.Pair{Prefill: from, Decode: d}); w.servers.Possible(&w.ticket, pair) {
			all = append(all, f.Alternative(&w.servers, &w.ticket, pair, price))
		}
	}
	slices.SortStableFunc(all, func(a, b Alternative) int { return cmp.Compare(a.Terms.Total(), b.Terms.Total()) })
	return all
}

// Alternatives prices every way to run the request, in the order of the candidates: all
// pairs, then all servers alone. It is for people; Choose does not use it.
func (m *Model) Alternatives(r Demand, f *Candidates, price float64) []Alternative {
	var w pricing
	w.put(m, r, f)
	s, t := &w.servers, &w.ticket
	all := make([]Alternative, 0, (len(f.Prefill)+1)*len(f.Decode))
	for p := range f.Prefill {
		for d := range f.Decode {
			if pair := (order.Pair{Prefill: p, Decode: d}); s.Possible(t, pair) {
				all = append(all, f.Alternative(s, t, pair, price))
			}
		}
	}
	for d := range f.Decode {
		if pair := (order.Pair{Prefill: order.Aggregated, Decode: d}); s.Possible(t, pair) {
			all = append(all, f.Alternative(s, t, pair, price))
		}
	}
	return all
}
