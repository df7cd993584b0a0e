package order

import (
	"math"
	"testing"
)

// A predicted wait for a busy server counts more than it is: requests that arrive meanwhile and go first are not
// in it. So a request has a free server that would serve it a little later by prediction; not so where many wait,
// or where it follows another request.
func TestOrder_AWaitCountsMoreThanPredicted(t *testing.T) {
	for _, c := range []struct {
		margin, ahead float64
		others        int // that wait, and may have no server but the busy one
		follows       bool
		goes          bool // to the free server, which takes 0.75 s
	}{
		{0, 0.72, 0, false, false},
		{1, 0.72, 0, false, true},
		{1, 0.4, 0, false, false},
		{1, 0.72, 20, false, false},
		{1, 0.72, 0, true, false},
	} {
		cfg := DefaultConfig()
		cfg.WaitMargin = c.margin
		o, s := New(cfg), fleetOf(2, 1)
		s.Prefill[0].Ahead = c.ahead
		k := &Ticket{ID: 1}
		k.price(s, math.Inf(1))
		k.Prefill[0], k.Prefill[1] = 0.1, 0.75
		copy(k.Reference, k.Prefill)
		k.Weights.Congestion, k.Follows = 0, c.follows
		o.Add(k, s.Links)
		for id := range c.others {
			w := &Ticket{ID: int64(2 + id)}
			w.price(s, math.Inf(1))
			w.Prefill[1] = math.Inf(1)
			o.Add(w, s.Links)
		}
		if turn, goes := o.Next(s); goes != c.goes || goes && turn.Prefill != 1 {
			t.Errorf("%+v: %+v, %v", c, turn.Pair, goes)
		}
	}
}

// What those before a request take on a busy server counts like the work ahead of it.
func TestOrder_TheWaitForThoseBeforeCountsMoreToo(t *testing.T) {
	for margin, want := range map[float64]int{0: 0, 2: 1} { // requests that go to the free server, of two
		cfg := DefaultConfig()
		cfg.WaitMargin = margin
		o, s := New(cfg), fleetOf(2, 1)
		s.Prefill[0].Ahead = 0.2
		for id := range int64(2) {
			k := &Ticket{ID: id}
			k.price(s, math.Inf(1))
			k.Weights.Congestion = 0
			k.Prefill[0], k.Prefill[1] = 0.3, 0.75
			copy(k.Reference, k.Prefill)
			o.Add(k, s.Links)
		}
		went := 0
		for turn, goes := o.Next(s); goes; turn, goes = o.Next(s) {
			s.Prefill[turn.Prefill].Ahead += turn.Ticket.Prefill[turn.Prefill]
			went++
		}
		if went != want {
			t.Errorf("with a margin of %g %d go to the free server, want %d", margin, went, want)
		}
	}
}

// A prefill server gets its next request while it has a little work left: less than a step of it takes
// whatever is in it, or so little that it would idle for a round trip. A decode server may have more.
func TestOrder_HowMuchWorkIsLeftWhenTheNextGoes(t *testing.T) {
	for _, c := range []struct {
		ahead, perStep float64
		goes           bool
	}{{0.015, 0.005, true}, {0.05, 0.005, false}, {0.05, 0.06, true}, {0.07, 0.06, false}} {
		o, s := New(DefaultConfig()), fleetOf(1, 1)
		s.Prefill[0].Ahead, s.Prefill[0].PerStep = c.ahead, c.perStep
		k := &Ticket{ID: 1}
		k.price(s, math.Inf(1))
		o.Add(k, s.Links)
		if _, goes := o.Next(s); goes != c.goes {
			t.Errorf("with %g s ahead on a server with steps of %g s: %v", c.ahead, c.perStep, goes)
		}
	}
	for ahead, want := range map[float64]bool{0.04: true, 0.06: false} {
		o, s := New(DefaultConfig()), fleetOf(0, 1)
		s.Decode[0].Ahead = ahead
		k := &Ticket{ID: 1}
		k.price(s, 1)
		o.Add(k, s.Links)
		if _, goes := o.Next(s); goes != want {
			t.Errorf("with %g s ahead on a decode server: %v", ahead, goes)
		}
	}
}
