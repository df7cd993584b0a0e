package order

import (
	"math"
	"slices"
	"testing"
	"time"
)

// asPredicted is a forecast that takes waits as they are predicted.
func asPredicted(promises bool) Forecast {
	return Forecast{Margin: func(d time.Duration) time.Duration { return d }, Promises: promises}
}

// fullDecode is a decode server without KV room whose answers of 100 tokens take 2 s.
func fullDecode() *Servers {
	s := fleetOf(200, 1)
	s.Decode[0] = DecodeState{Step: 0.02, Used: 10_000, Running: 10}
	return s
}

// That decode's steps take twice as long shows only once its batch is full: those that came before would begin too late now.
// They wait on until that has shown for a while, and one that was promised its turn does in any case.
func TestGiveUp_WhatShowsToBeginTooLate(t *testing.T) {
	for name, c := range map[string]struct {
		step    float64
		between float64 // the step at a look between the two; 0: there is none
		promise bool
		givenUp int
	}{
		"steps as before":              {step: 0.02},
		"longer ones":                  {step: 0.04, givenUp: 10},
		"longer ones, and promises":    {step: 0.04, promise: true},
		"they were short in between":   {step: 0.04, between: 0.02},
		"they were longer all the way": {step: 0.04, between: 0.05, givenUp: 10},
	} {
		s, o := fullDecode(), New(DefaultConfig())
		for id := range 20 {
			ticket := &Ticket{ID: int64(id), Latest: virtual(4.3), Output: 100, Promised: c.promise}
			ticket.price(s, math.Inf(1))
			if _, _, ok := o.Admit(ticket, s, asPredicted(c.promise)); !ok {
				t.Fatalf("%s: request %d is refused", name, id)
			}
		}
		look := func(step float64, now time.Duration) []TooLate {
			s.Decode[0].Step, s.Now = step, now
			return o.GiveUp(s, asPredicted(false), 30*time.Millisecond)
		}
		if early := look(c.step, 10*time.Millisecond); len(early) > 0 {
			t.Errorf("%s: %d are given up at once", name, len(early))
		}
		if c.between > 0 {
			look(c.between, 20*time.Millisecond)
		}
		late := look(c.step, 40*time.Millisecond)
		if len(late) != c.givenUp || o.Len() != 20-c.givenUp {
			t.Errorf("%s: %d are given up and %d wait, want %d given up", name, len(late), o.Len(), c.givenUp)
		}
		if !slices.IsSortedFunc(late, func(a, b TooLate) int { return int(a.ID - b.ID) }) || len(late) > 0 && (late[0].ID != 10 || late[0].By < 300*time.Millisecond || late[0].By > 500*time.Millisecond) {
			t.Errorf("%s: request %d is the first that is given up, %v too late", name, late[0].ID, late[0].By)
		}
	}
}

// Answers that began together end together: just before that, room for all of them is near, though in the mean little comes free.
func TestAdmit_WhatWentTogetherEndsTogether(t *testing.T) {
	for name, c := range map[string]struct {
		ago      float64 // that ten requests went, in seconds; 0: they did not
		latest   float64
		admitted int
	}{
		"it is not known when":        {0, 0.6, 2},
		"just now":                    {0.1, 0.6, 2},
		"long ago":                    {1.8, 0.6, 9},
		"long ago, and one round on":  {1.8, 2.3, 19},
		"longer ago than they take":   {5, 0.6, 9},
		"longer ago, and a round on":  {5, 2.3, 19},
		"by then some of it comes so": {0.1, 2.1, 10},
	} {
		s, o := fullDecode(), New(DefaultConfig())
		s.Now = virtual(10)
		for range 10 {
			if c.ago > 0 {
				o.recordWent(&Ticket{kv: 950, output: 100}, s.Now-virtual(c.ago))
			}
		}
		if admitted := o.admitted(s, 100, math.Inf(1), s.Now+virtual(c.latest), Forecast{}); admitted != c.admitted {
			t.Errorf("%s: %d requests are let in, want %d", name, admitted, c.admitted)
		}
	}
}

// What went and came to nothing, and what went long ago, is not remembered.
func TestOrder_RemembersTheLastThatWent(t *testing.T) {
	s, o := fleetOf(1, 1), New(DefaultConfig())
	ticket := &Ticket{Output: 100}
	ticket.price(s, math.Inf(1))
	o.Add(ticket, s.Links)
	turn, ok := o.Next(s)
	if !ok || len(o.went) != 1 || o.went[0] != (wentRequest{s.Now, 1000, 100}) {
		t.Fatalf("it goes %v: %+v", ok, o.went)
	}
	o.UndoTurn(turn)
	if len(o.went) != 0 {
		t.Errorf("its turn came to nothing: %+v", o.went)
	}
	for i := range 5 * mostWent {
		o.recordWent(ticket, time.Duration(i))
	}
	if n := len(o.went); n > 2*mostWent || n < mostWent || o.went[n-1].at != 5*mostWent-1 {
		t.Errorf("%d are remembered, the last of %v", n, o.went[n-1].at)
	}
}
