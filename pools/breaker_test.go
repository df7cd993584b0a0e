package pools

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var errEngine = errors.New("engine failed")

func testServer(role Role) *Server {
	spec := Spec{URL: "http://10.0.0.1:8000", Role: role, Connector: "nixl"}
	l := newLive(Default())
	l.health.Store(&Health{Up: true, Models: []Model{{ID: "m"}}})
	return &Server{Spec: spec, id: spec.ID(), fleet: &Fleet{}, live: l}
}

// use claims and settles once, and reports whether the claim was granted.
func use(t *testing.T, s *Server, leg Role, verdict error) bool {
	t.Helper()
	l, err := s.Claim(leg, Work{}, false)
	if err != nil {
		if !errors.Is(err, ErrRefused) {
			t.Fatalf("claim: %v", err)
		}
		return false
	}
	l.Sent(0)
	l.Settle(verdict)
	l.Release()
	return true
}

func trip(t *testing.T, s *Server, leg Role) {
	t.Helper()
	for range DefaultBreaker().Consecutive {
		use(t, s, leg, errEngine)
	}
}

func TestBreaker_OpensAfterFiveFailuresInARowForThatLegOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Both)
		for range 4 {
			use(t, s, Decode, errEngine)
		}
		if got := s.Breaker(Decode, time.Now()); got != Closed {
			t.Fatalf("after four failures: %s", got)
		}
		use(t, s, Decode, errEngine)
		if got := s.Breaker(Decode, time.Now()); got != Open {
			t.Fatalf("after five failures: %s", got)
		}
		if got := s.Breaker(Prefill, time.Now()); got != Closed {
			t.Fatalf("prefill's breaker is %s", got)
		}
		if use(t, s, Decode, nil) {
			t.Fatal("an open breaker granted a claim")
		}
	})
}

func TestBreaker_EjectionsDoubleUpToTheCap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		trip(t, s, Decode)
		want := time.Second
		for i := range 9 {
			start := time.Now()
			for s.Breaker(Decode, time.Now()) == Open {
				time.Sleep(10 * time.Millisecond)
			}
			got := time.Since(start)
			if got < want*79/100 || got > want*121/100 {
				t.Errorf("ejection %d took %v, want %v +-20 %%", i+1, got, want)
			}
			want = min(2*want, time.Minute)
			if !use(t, s, Decode, errEngine) { // the probe fails
				t.Fatal("a half-open breaker refused its probe")
			}
		}
	})
}

func TestBreaker_AHungProbeIsJudgedByItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		trip(t, s, Decode)
		time.Sleep(2 * time.Second)
		hung, err := s.Claim(Decode, Work{}, false)
		if err != nil {
			t.Fatalf("the probe was refused: %v", err)
		}
		if _, err := s.Claim(Decode, Work{}, false); !errors.Is(err, ErrRefused) {
			t.Fatal("a second request passed while the probe was out")
		}
		time.Sleep(time.Minute) // prefill runs first: the clock stands still until Sent
		if got := s.Breaker(Decode, time.Now()); got != HalfOpen {
			t.Fatalf("before the probe was sent: %s", got)
		}
		hung.Sent(0)
		time.Sleep(DefaultBreaker().Probe + time.Millisecond)
		if got := s.Breaker(Decode, time.Now()); got != Open {
			t.Fatalf("after the probe's deadline: %s", got)
		}
		hung.Settle(nil) // too late to count
		hung.Release()
		if got := s.Breaker(Decode, time.Now()); got != Open {
			t.Fatalf("a verdict after the deadline counted: %s", got)
		}
	})
}

func TestBreaker_AProbeThatAnswersCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		trip(t, s, Decode)
		time.Sleep(2 * time.Second)
		use(t, s, Decode, nil)
		if got := s.Breaker(Decode, time.Now()); got != Closed {
			t.Fatalf("got %s", got)
		}
	})
}

func TestBreaker_NeutralOutcomesNeverCount(t *testing.T) {
	s := testServer(Decode)
	for range 10_000 {
		use(t, s, Decode, fmt.Errorf("refused: %w", ErrNeutral))
		use(t, s, Decode, context.Canceled)
	}
	if got := s.Breaker(Decode, time.Now()); got != Closed {
		t.Fatalf("after 20,000 neutral outcomes: %s", got)
	}
	if c := s.breakers[1].gate.Counts(); c.TotalFailures != 0 || c.TotalSuccesses != 0 {
		t.Fatalf("neutral outcomes were counted: %+v", c)
	}
}

func TestLease_EndingsRunOnceAndABrokenStreamCountsAgain(t *testing.T) {
	s := testServer(Decode)
	l, err := s.Claim(Decode, Work{Tokens: 100}, false)
	if err != nil {
		t.Fatal(err)
	}
	l.Settle(nil)
	l.Settle(errEngine)
	if c := s.breakers[1].gate.Counts(); c.TotalSuccesses != 1 || c.TotalFailures != 0 {
		t.Fatalf("a second verdict counted: %+v", c)
	}
	l.Broke(errEngine)
	if c := s.breakers[1].gate.Counts(); c.TotalSuccesses != 1 || c.TotalFailures != 1 {
		t.Fatalf("the broken stream did not count as a failure of its own: %+v", c)
	}
	l.Release()
	l.Release()
	if own := s.InFlight(Decode, time.Now()); own != (InFlight{}) {
		t.Fatalf("after release: %+v", own)
	}
}

func TestClaim_DrainingAndForeignRolesRefuse(t *testing.T) {
	s := testServer(Prefill)
	if _, err := s.Claim(Decode, Work{}, true); !errors.Is(err, ErrRefused) {
		t.Errorf("a prefill server took a decode: %v", err)
	}
	s.Drain = true
	if _, err := s.Claim(Prefill, Work{}, true); !errors.Is(err, ErrRefused) {
		t.Errorf("a draining server took a claim: %v", err)
	}
}
