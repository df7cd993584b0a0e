package pools

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// hold gives a server n requests in flight.
func hold(t *testing.T, s *Server, n int) {
	t.Helper()
	for range n {
		if _, err := s.Claim(Decode, curve.Work{}, false, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}

// fill sends requests to the candidate with the fewest, as a choice by load does,
// and returns how many the first server then holds.
func fill(t *testing.T, servers []*Server, n int) int {
	t.Helper()
	for range n {
		usable, _ := Candidates(nil, servers, "m", Decode, 0.5, time.Now())
		least := usable[0]
		for _, s := range usable[1:] {
			if s.OwnInFlight(Decode, time.Now()).Requests < least.OwnInFlight(Decode, time.Now()).Requests {
				least = s
			}
		}
		hold(t, least, 1)
	}
	return servers[0].OwnInFlight(Decode, time.Now()).Requests
}

func TestSlowStart_AServerThatReturnsIsNotBuried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := fleetOf(4)
		for _, s := range servers[1:] {
			hold(t, s, 100)
		}
		servers[0].beginSlowStart(Decode, time.Minute, 10*time.Second, time.Now())
		if got := fill(t, servers, 100); got > 15 {
			t.Errorf("of 100 requests that came at once it got %d", got)
		}
		time.Sleep(5 * time.Second)
		if got := fill(t, servers, 100); got < 50 || got > 80 {
			t.Errorf("half-way it holds %d, the others some 140", got)
		}
		time.Sleep(5 * time.Second)
		if got := fill(t, servers, 200); got < 130 {
			t.Errorf("after the slow start it holds %d", got)
		}
	})
}

func TestSlowStart_IsNoLongerThanTheServerWasAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := fleetOf(2)
		hold(t, servers[1], 20)
		servers[0].beginSlowStart(Decode, 100*time.Millisecond, 10*time.Second, time.Now())
		time.Sleep(100 * time.Millisecond)
		if got := fill(t, servers, 20); got != 20 {
			t.Errorf("got %d of 20", got)
		}
	})
}

func TestSlowStart_AnIdleFleetAndOneThatStartsUseAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := fleetOf(3)
		for _, s := range servers {
			s.beginSlowStart(Decode, time.Minute, 10*time.Second, time.Now())
		}
		if got := fill(t, servers, 30); got != 10 {
			t.Errorf("of a fleet that starts the first server got %d of 30", got)
		}
		idle := fleetOf(2)
		idle[0].beginSlowStart(Decode, time.Minute, 10*time.Second, time.Now())
		if usable, _ := Candidates(nil, idle, "m", Decode, 0.5, time.Now()); len(usable) != 2 {
			t.Errorf("%d of 2 idle servers are usable", len(usable))
		}
	})
}
