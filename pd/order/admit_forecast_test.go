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
		if slower := o.rate.ratio(1) < 1; slower != c.slower {
			t.Errorf("it waits %s: prefills are served at %g of their rate", name, o.rate.ratio(1))
		}
	}
}

// admitted is how many of so many requests of a second of prefill, and of a thousand tokens of KV, are let in that come
// at once and are to begin by a time; alone is the seconds that decode takes for such a prompt.
func (o *Order) admitted(s *Servers, requests int, alone float64, latest time.Duration, f Forecast) (admitted int) {
	f.Margin = func(d time.Duration) time.Duration { return d } // as predicted
	for id := range requests {
		ticket := &Ticket{ID: int64(id), Latest: latest, Output: 100}
		ticket.price(s, alone)
		if _, _, ok := o.Admit(ticket, s, f); ok {
			admitted++
		}
	}
	return admitted
}

// Decode servers compute prompts too: how many, only requests that have waited show. Until they have, a burst is refused
// only as far as it would come too late with all that decode could do.
func TestAdmit_OfABurstOnlyWhatComesTooLateIsRefused(t *testing.T) {
	both := fleetOf(2, 2)
	for i := range both.Prefill {
		both.Prefill[i].Self = i
	}
	down := fleetOf(2, 2)
	down.Decode[1].Excluded = true
	for name, c := range map[string]struct {
		s          *Servers
		alone      float64
		work, time float64 // seconds of prefill that went lately, and of prefill servers meanwhile
		admitted   int
	}{
		"no decode server computes prompts":    {fleetOf(2, 2), math.Inf(1), 0, 0, 21},
		"each could, as fast":                  {fleetOf(2, 2), 1, 0, 0, 41},
		"each could, and is faster":            {fleetOf(2, 2), 0.5, 0, 0, 41},
		"each could, half as fast":             {fleetOf(2, 2), 2, 0, 0, 31},
		"one is down":                          {down, 1, 0, 0, 31},
		"they are the servers that prefill":    {both, 1, 0, 0, 21},
		"they did half of it":                  {fleetOf(2, 2), 1, 1.5e6, 1e6, 31},
		"they did nothing, and prefill a half": {fleetOf(2, 2), 1, 0.5e6, 1e6, 11},
	} {
		for d := range c.s.Decode {
			c.s.Decode[d].KVRoom = 1_000_000
		}
		o := New(DefaultConfig())
		o.rate.work, o.rate.time = c.work, c.time
		if admitted := o.admitted(c.s, 100, c.alone, 10*time.Second, Forecast{}); admitted != c.admitted {
			t.Errorf("%s: %d requests are let in, want %d", name, admitted, c.admitted)
		}
	}
}

// A turn by a deadline is promised, and none by what decode servers could do, or did lately: as many are let in as prefill
// servers alone are predicted to serve, and fewer where they were slower.
func TestAdmit_PromisesNoHelpOfDecodeServers(t *testing.T) {
	for name, c := range map[string]struct {
		work, time float64
		admitted   int
	}{"each could compute prompts": {0, 0, 21}, "they did half of it": {1.5e6, 1e6, 21}, "they did nothing, and prefill a half": {0.5e6, 1e6, 11}} {
		s, o := fleetOf(2, 2), New(DefaultConfig())
		for d := range s.Decode {
			s.Decode[d].KVRoom = 1_000_000
		}
		o.rate.work, o.rate.time = c.work, c.time
		if admitted := o.admitted(s, 100, 1, 10*time.Second, Forecast{Promises: true}); admitted != c.admitted {
			t.Errorf("%s: %d requests are let in, want %d", name, admitted, c.admitted)
		}
	}
}

// What decode frees of its KV is more once a burst has filled it: the streams of now say only what comes free until then.
func TestAdmit_KVThatIsFreeNowComesFreeAgain(t *testing.T) {
	for name, c := range map[string]struct {
		used, room, running int
		perToken            float64
		latest              float64 // seconds
		admitted            int
	}{
		// Answers of 100 tokens take 2 s, and each thousand tokens of prompt comes free with 50 of the answer to grow.
		"full":                        {10_000, 0, 10, 0, 4.2, 20},
		"one runs":                    {1000, 9000, 1, 0, 6.2, 29},
		"none runs":                   {0, 10_000, 0, 0, 4.2, 20},
		"none runs, and prompts big":  {0, 10, 0, 0, 4.2, 2},
		"who knows of fuller batches": {1000, 9000, 1, 0.02 / 9000, 6.2, 29},
	} {
		s := fleetOf(200, 1)
		s.Decode[0] = DecodeState{Step: 0.02, Used: c.used, KVRoom: c.room, Running: c.running, PerToken: c.perToken}
		if admitted := New(DefaultConfig()).admitted(s, 100, math.Inf(1), virtual(c.latest), Forecast{}); admitted != c.admitted {
			t.Errorf("%s: %d requests are let in, want %d", name, admitted, c.admitted)
		}
	}
}
