package order

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestServers_Possible(t *testing.T) {
	inf := math.Inf(1)
	pair, alone := Pair{1, 1}, Pair{Aggregated, 1}
	for _, of := range []struct {
		name              string
		change            func(*Servers, *Ticket)
		pair, alone, some bool // possible; some: of all pairs
	}{
		{"nothing is wrong", func(*Servers, *Ticket) {}, true, true, true},
		{"the decode server is out", func(s *Servers, _ *Ticket) { s.Decode[1].Excluded = true }, false, false, true},
		{"all decode servers are", func(s *Servers, _ *Ticket) { s.Decode[0].Excluded, s.Decode[1].Excluded = true, true }, false, false, false},
		{"the prefill server is out", func(s *Servers, _ *Ticket) { s.Prefill[1].Excluded = true }, false, true, true},
		{"it must not have the prefill server", func(_ *Servers, t *Ticket) { t.Prefill[1] = inf }, false, true, true},
		{"nor the decode server's KV", func(_ *Servers, t *Ticket) { t.Missing[1] = inf }, false, true, true},
		{"no link", func(s *Servers, _ *Ticket) { s.Links.Latency[3] = inf }, false, true, true},
		{"decode does not prefill", func(_ *Servers, t *Ticket) { t.Aggregated[1] = inf }, true, false, true},
		{"both are one server", func(s *Servers, _ *Ticket) { s.Prefill[1].Self = 1 }, false, true, true},
		{"no room, which is left apart", func(s *Servers, _ *Ticket) { s.Decode[1].KVRoom = 0 }, true, true, true},
		{"decode alone is left", func(s *Servers, _ *Ticket) { s.Prefill[0].Excluded, s.Prefill[1].Excluded = true, true }, false, true, true},
		{"nothing is left", func(s *Servers, t *Ticket) {
			s.Prefill[0].Excluded, s.Prefill[1].Excluded = true, true
			t.Aggregated[0], t.Aggregated[1] = inf, inf
		}, false, false, false},
	} {
		s, ticket := fleetOf(2, 2), &Ticket{}
		ticket.price(s, 1)
		of.change(s, ticket)
		if s.Possible(ticket, pair) != of.pair || s.Possible(ticket, alone) != of.alone || s.Servable(ticket) != of.some {
			t.Errorf("%s: the pair %v, alone %v, any %v", of.name, s.Possible(ticket, pair), s.Possible(ticket, alone), s.Servable(ticket))
		}
	}
}

// A pair takes 1 s of prefill and a step of 20 ms; nothing else takes time.
func TestTerms_CountTheObjectivesMissed(t *testing.T) {
	for _, of := range []struct {
		ttft, itl float64
		want      int
	}{
		{0, 0, 0}, // there are none
		{2, 0.05, 0}, {2, 0.01, 1}, {1.01, 0.05, 1}, {1.01, 0.01, 2}, {0, 0.01, 1}, {1.01, 0, 1},
	} {
		s, ticket := fleetOf(1, 1), &Ticket{}
		ticket.price(s, math.Inf(1))
		ticket.TTFT, ticket.ITL = of.ttft, of.itl
		if terms := s.Terms(ticket, Pair{0, 0}, 1); terms.Misses != of.want {
			t.Errorf("within %v s, and %v s a token: %d missed, want %d of %+v", of.ttft, of.itl, terms.Misses, of.want, terms)
		}
	}
}

// Where prefill says the first token the client has it before the transfer of half a second, and
// the pair costs what it cost: the second token waits for the transfer.
func TestTerms_TheFirstTokenFromPrefill(t *testing.T) {
	s, ticket := fleetOf(1, 1), &Ticket{}
	s.Links.Latency[0] = 0.5
	ticket.price(s, math.Inf(1))
	ticket.TTFT = 1.2
	fromDecode := s.Terms(ticket, Pair{0, 0}, 1)
	firstFromPrefill(s, ticket)
	fromPrefill := s.Terms(ticket, Pair{0, 0}, 1)
	if fromDecode.TTFT() != 1.52 || fromDecode.Misses != 1 || fromPrefill.TTFT() != 1 || fromPrefill.Misses != 0 || fromPrefill.FirstStep() != 1.52 {
		t.Errorf("from decode %v s, %d missed; from prefill %v s, %d missed, %v s to a step",
			fromDecode.TTFT(), fromDecode.Misses, fromPrefill.TTFT(), fromPrefill.Misses, fromPrefill.FirstStep())
	}
	if ticket.derive(s.Links); ticket.leastTTFT != 1 {
		t.Errorf("it is late only when %v s are left", ticket.leastTTFT)
	}
	if got, want := fromPrefill.Cost(), fromDecode.Cost()-Miss; math.Abs(got-want) > 1e-6 {
		t.Errorf("it costs %v, want %v", got, want)
	}
}

// With an objective for gaps prefill's token is held where the gap is predicted to be longer; its time counts.
func TestTerms_TheFirstTokenIsHeld(t *testing.T) {
	for _, of := range []struct{ itl, held float64 }{{0, 0}, {2, 0}, {0.52, 0}, {0.42, 0.1}, {0.02, 0.5}} {
		s, ticket := fleetOf(1, 1), &Ticket{}
		s.Links.Latency[0] = 0.5
		ticket.price(s, math.Inf(1))
		firstFromPrefill(s, ticket)
		ticket.ITL = of.itl
		terms := s.Terms(ticket, Pair{0, 0}, 1)
		if math.Abs(terms.Held-of.held) > 1e-9 || math.Abs(terms.TTFT()-1-of.held) > 1e-9 || math.Abs(s.LeastTTFT(ticket)-1-of.held) > 1e-9 {
			t.Errorf("gaps of %v s: held for %v s, want %v, its first token after %v s, at least %v", of.itl, terms.Held, of.held, terms.TTFT(), s.LeastTTFT(ticket))
		}
	}
}

// The terms of every pair add up to its cost.
func TestTerms_AddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, tickets := randomFleet(t)
		k, price := tickets[0], rapid.Float64Range(0, 5).Draw(t, "price")
		for _, pair := range pairs(s) {
			want := slowCost(s, k, pair, price)
			if math.IsInf(want, 1) {
				continue // not possible, or no room
			}
			terms := s.Terms(k, pair, price)
			if math.Abs(terms.TTFT()-s.ttftLeft(k)) < 1e-6 {
				continue // in time, or not, but for rounding
			}
			if !s.Possible(k, pair) || math.Abs(terms.Cost()-want) > 1e-6 {
				t.Fatalf("%+v (possible: %v) costs %f by its terms %+v, want %f", pair, s.Possible(k, pair), terms.Cost(), terms, want)
			}
		}
	})
}

// A prompt that decode computes while its streams go on costs these less than a standstill.
func TestTerms_StreamsThatGoOnLoseLess(t *testing.T) {
	s, ticket := fleetOf(1, 1), &Ticket{}
	ticket.price(s, 2)
	s.Decode[0].Running = 10
	still := s.Terms(ticket, Pair{Aggregated, 0}, 1)
	ticket.StreamShare = []float64{0.25}
	if on := s.Terms(ticket, Pair{Aggregated, 0}, 1); still.DelayToOthers-on.DelayToOthers != 0.75*2*10 {
		t.Errorf("delay to others %v s, %v where streams stand still", on.DelayToOthers, still.DelayToOthers)
	}
}

// What a decode server lacks waits for what is under way on either server's link, as far as that moves
// for longer than its prefill takes; what it holds waits for nothing.
func TestTerms_KVWaitsForWhatIsUnderWay(t *testing.T) {
	s, ticket := fleetOf(1, 1), &Ticket{}
	ticket.price(s, math.Inf(1))
	s.HandOff, s.Prefill[0].Ahead = 0.25, 0.25
	wait := func(sending, receiving LinkUse) float64 {
		s.Prefill[0].Sending, s.Decode[0].Receiving = LinkUse{}, LinkUse{}
		free := s.Terms(ticket, Pair{0, 0}, 1)
		s.Prefill[0].Sending, s.Decode[0].Receiving = sending, receiving
		busy := s.Terms(ticket, Pair{0, 0}, 1)
		return busy.Transfer - free.Transfer
	}
	for _, c := range []struct {
		sending, receiving LinkUse
		want               float64
	}{
		{LinkUse{Moving: 2}, LinkUse{Moving: 3}, 1.5},
		{LinkUse{Moving: 2}, LinkUse{}, 0.5},
		{LinkUse{Moving: 1.25}, LinkUse{Moving: 1.5}, 0},
		{LinkUse{Coming: 1, ComesIn: 1}, LinkUse{}, 0.5},            // it is taken from 1 to 2 s, and this comes after 1.5
		{LinkUse{Coming: 1, ComesIn: 2}, LinkUse{}, 0},              // this comes before
		{LinkUse{Moving: 2, Coming: 1, ComesIn: 1}, LinkUse{}, 1.5}, // one after the other, to 3 s
		{LinkUse{Moving: 2, Coming: 1, ComesIn: 1.75}, LinkUse{}, 0.5},
	} {
		if got := wait(c.sending, c.receiving); got != c.want {
			t.Errorf("waits for %v s for links that are taken for %+v and %+v s, want %v", got, c.sending, c.receiving, c.want)
		}
	}
	ticket.Missing[0] = 0
	if got := wait(LinkUse{Moving: 2}, LinkUse{Moving: 3}); got != 0 {
		t.Errorf("a server that lacks nothing waits for %v s", got)
	}
}
