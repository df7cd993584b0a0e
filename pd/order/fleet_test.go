package order

import (
	"math"
	"testing"
	"time"
)

// fleetOf is idle prefill and decode servers with like links.
func fleetOf(prefills, decodes int) *Servers {
	s := &Servers{Gate: true, Prefill: make([]PrefillState, prefills), Decode: make([]DecodeState, decodes), Links: NewLinkTable(prefills, decodes)}
	for p := range s.Prefill {
		s.Prefill[p].Self = -1
	}
	for d := range s.Decode {
		s.Decode[d] = DecodeState{Step: 0.02, KVRoom: 100_000, Running: 1}
	}
	return s
}

// price makes a ticket cost a second on each prefill server, and on decode servers alone
// what is said.
func (t *Ticket) price(s *Servers, alone float64) {
	t.Tokens, t.Weights = 1000, Latency.Weights()
	t.Resize(len(s.Prefill), len(s.Decode))
	for p := range t.Prefill {
		t.Prefill[p], t.Reference[p] = 1, 1
	}
	for d := range t.Aggregated {
		t.Missing[d], t.Aggregated[d], t.Stall[d] = 1e9, alone, 0
	}
}

func TestOrder_WithoutPrefillServersDecodeServes(t *testing.T) {
	s := fleetOf(0, 2)
	o, ticket := New(DefaultConfig()), &Ticket{ID: 1}
	ticket.price(s, 1)
	o.Add(ticket, s.Links)
	if turn, ok := o.Next(s); !ok || turn.Prefill != Aggregated {
		t.Errorf("%+v, %v", turn, ok)
	}
}

func TestOrder_TheDecodeServerThatARequestWaitedForIsGone(t *testing.T) {
	s := fleetOf(1, 2)
	s.Prefill[0].Ahead = 2
	s.Decode[0].Excluded = true // it waits for the second
	o, ticket := New(DefaultConfig()), &Ticket{ID: 1}
	ticket.price(s, 10) // which could serve it at once, and dearer
	o.Add(ticket, s.Links)
	if turn, ok := o.Next(s); ok {
		t.Fatalf("it goes to a server with work ahead: %+v", turn)
	}
	if ticket.awaited.Pair != (Pair{0, 1}) {
		t.Fatalf("it waits for %+v", ticket.awaited.Pair)
	}
	s = fleetOf(1, 1)
	s.Prefill[0].Ahead, s.Now = 2, time.Second
	ticket.price(s, 10)
	o.Update(ticket, s.Links)
	if turn, ok := o.Next(s); ok {
		t.Fatalf("it goes to a server with work ahead: %+v", turn)
	}
	s.Prefill[0].Ahead = 0
	if turn, ok := o.Next(s); !ok || turn.Pair != (Pair{0, 0}) {
		t.Errorf("%+v, %v", turn, ok)
	}
}

func TestOrder_ThePairThatARequestWaitedForIsForbidden(t *testing.T) {
	s := fleetOf(2, 1)
	s.Prefill[0].Ahead, s.Prefill[1].Ahead = 2, 4
	o, ticket := New(DefaultConfig()), &Ticket{ID: 1}
	ticket.price(s, 10)
	o.Add(ticket, s.Links)
	if turn, ok := o.Next(s); ok {
		t.Fatalf("it goes to a server with work ahead: %+v", turn)
	}
	ticket.Prefill[0] = math.Inf(1)
	o.Update(ticket, s.Links)
	s.Prefill[1].Ahead = 0
	if turn, ok := o.Next(s); !ok || turn.Pair != (Pair{1, 0}) {
		t.Errorf("%+v, %v", turn, ok)
	}
}

func TestOrder_ATurnThatCameToNothingIsNotCharged(t *testing.T) {
	s := fleetOf(1, 1)
	o := New(DefaultConfig())
	for id, tenant := range []string{"a", "a", "b", "b"} {
		ticket := &Ticket{ID: int64(id), Tenant: tenant}
		ticket.price(s, math.Inf(1))
		o.Add(ticket, s.Links)
	}
	before := *o
	first, ok := o.Next(s)
	if !ok || first.Ticket.Tenant != "a" {
		t.Fatalf("%+v, %v", first, ok)
	}
	o.UndoTurn(first)
	if o.Len() != 4 || o.overdueCredit != before.overdueCredit || o.rate != before.rate {
		t.Errorf("%d wait, credit %v and pace %v, they were %v and %v", o.Len(), o.overdueCredit, o.rate, before.overdueCredit, before.rate)
	}
	if again, ok := o.Next(s); !ok || again.Ticket != first.Ticket {
		t.Errorf("%+v goes, %v", again.Ticket, ok)
	}
}

// A tenant's last request is priced again: what the tenant was given before still counts.
func TestOrder_AnotherPriceForgetsNothing(t *testing.T) {
	s := fleetOf(1, 1)
	o := New(DefaultConfig())
	var last *Ticket // of tenant a
	for id, tenant := range []string{"a", "a", "b", "b"} {
		ticket := &Ticket{ID: int64(id), Tenant: tenant}
		ticket.price(s, math.Inf(1))
		o.Add(ticket, s.Links)
		if tenant == "a" {
			last = ticket
		}
	}
	if first, ok := o.Next(s); !ok || first.Ticket.Tenant != "a" {
		t.Fatalf("%+v, %v", first, ok)
	}
	last.Prefill[0] = 0.9
	o.Update(last, s.Links)
	if second, ok := o.Next(s); !ok || second.Ticket.Tenant != "b" {
		t.Errorf("tenant %s is served again, %v", second.Ticket.Tenant, ok)
	}
}
