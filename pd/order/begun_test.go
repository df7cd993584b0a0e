package order

import (
	"math"
	"testing"
)

// A request of which a piece is prefilled goes on where it began, though another pair is free and
// costs less, and though decode has no room for others or is kept for one.
func TestOrder_WhatHasBegunKeepsItsPair(t *testing.T) {
	s := fleetOf(2, 2)
	o, ticket := New(DefaultConfig()), &Ticket{ID: 1}
	ticket.price(s, 0.1)
	ticket.Prefill[1] = 0.2
	ticket.KeepTo(Pair{0, 0})
	s.Decode[0].KVRoom, s.Decode[0].Excluded = 10, true
	o.Add(ticket, s.Links)
	if !s.Servable(ticket) {
		t.Fatal("no pair is possible")
	}
	if turn, ok := o.Next(s); !ok || turn.Pair != (Pair{0, 0}) {
		t.Errorf("%+v, %v", turn, ok)
	}
}

// While its prefill server is busy with others it waits; a shorter one goes before it.
func TestOrder_AShorterRequestGoesBetweenPieces(t *testing.T) {
	s := fleetOf(1, 1)
	o, long, short := New(DefaultConfig()), &Ticket{ID: 1}, &Ticket{ID: 2}
	long.price(s, math.Inf(1))
	long.Prefill[0] = 5
	long.KeepTo(Pair{0, 0})
	short.price(s, math.Inf(1))
	o.Add(long, s.Links)
	o.Add(short, s.Links)
	if turn, ok := o.Next(s); !ok || turn.Ticket != short {
		t.Fatalf("%+v, %v", turn, ok)
	}
	s.Prefill[0].Ahead = 1
	if turn, ok := o.Next(s); ok {
		t.Fatalf("%+v goes to a busy server", turn)
	}
	s.Prefill[0].Ahead = 0
	if turn, ok := o.Next(s); !ok || turn.Ticket != long {
		t.Errorf("%+v, %v", turn, ok)
	}
}

// Where its prefill server may not be chosen any more it cannot be served.
func TestOrder_WhatHasBegunHasNoOtherServers(t *testing.T) {
	s := fleetOf(2, 2)
	ticket := &Ticket{ID: 1}
	ticket.price(s, 0.1)
	ticket.KeepTo(Pair{0, 0})
	s.Prefill[0].Excluded = true
	if s.Servable(ticket) {
		t.Error("it is servable elsewhere")
	}
}

// Of what is left of a prefill that has begun a part counts: it goes before a shorter one that has not,
// and not before one that is much shorter.
func TestOrder_OfWhatHasBegunAPartCounts(t *testing.T) {
	for seconds, first := range map[float64]int64{1.9: 2, 2.1: 1} {
		s := fleetOf(1, 1)
		o, begun, other := New(DefaultConfig()), &Ticket{ID: 1}, &Ticket{ID: 2}
		begun.price(s, math.Inf(1))
		begun.Prefill[0] = 5
		begun.KeepTo(Pair{0, 0})
		other.price(s, math.Inf(1))
		other.Prefill[0] = seconds
		o.Add(begun, s.Links)
		o.Add(other, s.Links)
		if turn, ok := o.Next(s); !ok || turn.Ticket.ID != first {
			t.Errorf("beside one of %v s request %d goes, %v", seconds, turn.Ticket.ID, ok)
		}
	}
}

// What follows a prompt that is computed in pieces waits for all of it, and goes to its server behind
// what is left of it: while a piece is computed, and between two of them. Unless what is left is
// another one's, of a lower class, or so long that a free server is sooner.
func TestOrder_WhatIsLeftGoesBeforeWhatFollowsIt(t *testing.T) {
	const tail, anew = 0.1, 2.1
	for name, c := range map[string]struct {
		ahead, rest, waits float64 // seconds of a piece, of what is left then, and of what waits for its turn
		class              int     // of what waits
		follows            bool
		goes               int // prefill server; -1: the request waits
		first              bool
	}{
		"a piece ends, and the rest is there":  {ahead: 0.01, follows: true, goes: 0},
		"a piece ends":                         {ahead: 0.01, rest: 1, follows: true, goes: -1},
		"a piece ends that it does not follow": {ahead: 0.01, rest: 1, goes: 0},
		"much is left behind a piece":          {ahead: 1, rest: 5, follows: true, goes: 1},
		"little is left behind a piece":        {ahead: 1, rest: 0.5, follows: true, goes: -1},
		"the rest waits for its turn":          {waits: 1, follows: true, goes: 0, first: true},
		"a rest that it does not follow":       {waits: 1, goes: 0},
		"the rest is of a lower class":         {waits: 1, class: 1, follows: true, goes: 0},
	} {
		o, s := New(DefaultConfig()), fleetOf(2, 1)
		s.Prefill[0].Ahead, s.Prefill[0].Rest = c.ahead, c.rest
		k := &Ticket{ID: 1}
		k.price(s, math.Inf(1))
		k.Prefill[0], k.Prefill[1] = tail, anew
		copy(k.Reference, k.Prefill)
		k.Follows, k.FollowsOn[0] = c.follows, c.follows
		o.Add(k, s.Links)
		if c.waits > 0 {
			begun := &Ticket{ID: 2, Class: c.class}
			begun.price(s, math.Inf(1))
			begun.Prefill[0] = c.waits
			begun.KeepTo(Pair{0, 0})
			o.Add(begun, s.Links)
		}
		turn, ok := o.Next(s)
		switch {
		case !ok && c.goes >= 0, ok && turn.Prefill != c.goes:
			t.Errorf("%s: %+v, %v", name, turn.Pair, ok)
		case ok && turn.Ticket.Begun != c.first:
			t.Errorf("%s: request %d goes first", name, turn.Ticket.ID)
		}
	}
}

// twoServers are two prefill servers and one for decode, and a request that costs so many seconds on the former.
func twoServers() (s *Servers, ticket func(id int64, first, second float64) *Ticket) {
	s = &Servers{Gate: true, Links: NewLinkTable(2, 1), Prefill: []PrefillState{{Self: -1}, {Self: -1}}, Decode: []DecodeState{{Step: 0.02, KVRoom: 1 << 20}}}
	return s, func(id int64, first, second float64) *Ticket {
		k := &Ticket{ID: id, Tokens: 1000, Weights: Latency.Weights()}
		k.Resize(2, 1)
		copy(k.Prefill, []float64{first, second})
		copy(k.Reference, k.Prefill)
		k.Missing[0], k.Aggregated[0] = 0, math.Inf(1)
		return k
	}
}

// A request leaves a server to the prompt that has begun there, which can have no other, where another server is
// about as good.
func TestOrder_LeavesAServerToWhatWaitsForIt(t *testing.T) {
	for _, isAwaited := range []bool{false, true} {
		s, ticket := twoServers()
		o, long := New(DefaultConfig()), ticket(1, 9, 9)
		if isAwaited {
			long.KeepTo(Pair{0, 0})
		}
		o.Add(long, s.Links)
		o.Add(ticket(2, 0.5, 0.55), s.Links)
		turn, ok := o.Next(s)
		if want := map[bool]int{false: 0, true: 1}[isAwaited]; !ok || turn.Ticket.ID != 2 || turn.Prefill != want {
			t.Errorf("a prompt has begun on the first server: %v. Request %d went (%v) to server %d, want request 2 to %d", isAwaited, turn.Ticket.ID, ok, turn.Prefill, want)
		}
	}
}

// What waits behind the request whose turn it is counts when its pair is explained, also what was looked at
// behind it.
func TestOrder_SaysWhatWaitsBehindATurn(t *testing.T) {
	s, ticket := twoServers()
	s.Prefill[0].Ahead = 5
	o, long := New(DefaultConfig()), ticket(1, 1.3, 1.3)
	long.KeepTo(Pair{0, 0})
	o.Add(long, s.Links) // it counts 0.52 s, and is looked at before that of 0.5 is known to go first at 0.55
	o.Add(ticket(2, 0.5, 0.55), s.Links)
	turn, ok := o.Next(s)
	if !ok || turn.Ticket.ID != 2 || turn.Prefill != 1 || s.Prefill[0].Awaiting != 1 {
		t.Errorf("request %d went (%v) to %+v, and %d wait for the first server: want request 2 to the second, and 1", turn.Ticket.ID, ok, turn.Pair, s.Prefill[0].Awaiting)
	}
}
