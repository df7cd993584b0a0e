package order

import (
	"math"
	"testing"
	"time"
)

// Three requests of 10 s each come to two servers of which one has 10 s ahead, by a bound of 4 s: the
// second is let in as far as what servers have shown supports no wait that is too long.
func TestAdmit_RefusesByWhatIsSupportedAlone(t *testing.T) {
	most := func(longest float64) func(float64, int) float64 {
		return func(seconds float64, works int) float64 {
			return min(seconds, float64(max(1, works))*longest)
		}
	}
	for name, c := range map[string]struct {
		supported func(float64, int) float64
		ahead     float64
		latest    time.Duration
		admitted  int
	}{
		"all":                      {nil, 10, 4 * time.Second, 1},
		"all, and says so":         {most(math.Inf(1)), 10, 4 * time.Second, 1},
		"nothing":                  {most(0), 10, 4 * time.Second, 3},
		"so little":                {most(1), 10, 4 * time.Second, 3},
		"so little of what waits":  {most(7), 0, 4 * time.Second, 2},
		"enough":                   {most(5), 10, 4 * time.Second, 1},
		"all where all are behind": {nil, 0, time.Minute, 3},
	} {
		s := fleetOf(2, 2)
		s.Prefill[1].Ahead, s.Prefill[1].Queued = c.ahead, 1
		o, admitted := New(DefaultConfig()), 0
		for id := range 3 {
			ticket := &Ticket{ID: int64(id), Latest: c.latest}
			ticket.price(s, math.Inf(1))
			for p := range ticket.Prefill {
				ticket.Prefill[p] = 10
			}
			wait, _, ok := o.Admit(ticket, s, Forecast{Margin: func(d time.Duration) time.Duration { return d }, Supported: c.supported})
			if ok {
				admitted++
			}
			if want := time.Duration(id) * 10 * time.Second; c.ahead == 10 && admitted == id+1 && id < 2 && wait != want {
				t.Errorf("%s is supported: request %d is predicted to wait %v, want %v", name, id, wait, want)
			}
		}
		if admitted != c.admitted {
			t.Errorf("%s is supported: %d are admitted, want %d", name, admitted, c.admitted)
		}
	}
}

// While all that wait do so for KV room, prefill servers idle whatever they could do: that says nothing of how fast they serve.
func TestOrder_AWaitForKVRoomSaysNothingOfPrefill(t *testing.T) {
	for name, c := range map[string]struct {
		room   int
		slower bool
	}{"for KV room": {10, false}, "for prefill": {1000, true}} {
		s := fleetOf(1, 1)
		s.Gate = true
		s.Prefill[0].Ahead = 1
		s.Decode[0] = DecodeState{Step: 0.02, Ahead: 1, Used: 9000, KVRoom: c.room, Running: 9}
		o, ticket := New(DefaultConfig()), &Ticket{Tokens: 1000}
		ticket.price(s, 1)
		o.Add(ticket, s.Links)
		for range 2 {
			if _, ok := o.Next(s); ok {
				t.Fatalf("%s: it goes", name)
			}
			s.Now += 10 * time.Second
		}
		if slower := o.rate.ratio() < 1; slower != c.slower {
			t.Errorf("it waits %s: prefills are served at %g of their rate", name, o.rate.ratio())
		}
	}
}
