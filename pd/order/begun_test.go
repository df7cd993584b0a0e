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
