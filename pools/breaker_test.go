package pools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
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
	l, err := s.Claim(leg, curve.Work{}, false)
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
			s.breakers[1].judge(errEngine, time.Now())
		}
	})
}

// However long the ejection is over, no client's request proves the server.
func TestBreaker_OnlyACanaryProvesAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		trip(t, s, Decode)
		time.Sleep(time.Hour)
		if got := s.Breaker(Decode, time.Now()); got != HalfOpen {
			t.Fatalf("after the ejection: %s", got)
		}
		if use(t, s, Decode, nil) {
			t.Fatal("a client's request was let through")
		}
		if away := s.breakers[1].judge(nil, time.Now()); away != time.Hour {
			t.Errorf("away for %v", away)
		}
		for range 4 { // what was counted before is forgotten
			if !use(t, s, Decode, errEngine) {
				t.Fatal("a proved server refuses")
			}
		}
		if got := s.Breaker(Decode, time.Now()); got != Closed {
			t.Fatalf("got %s", got)
		}
	})
}

func TestBreaker_ASuspectIsEjectedByItsCanaryAlone(t *testing.T) {
	b := newBreaker(DefaultBreaker())
	now := time.Now()
	if _, due := b.canaryDue(time.Second); due {
		t.Fatal("a canary is due for no reason")
	}
	b.suspect()
	if at, due := b.canaryDue(time.Second); !due || at.After(now) {
		t.Fatalf("due %v, at %v", due, at)
	}
	b.judge(nil, now)
	if _, due := b.canaryDue(time.Second); due || b.out() {
		t.Fatal("a canary that passed left a trace")
	}
	b.suspect()
	if at, due := b.canaryDue(time.Second); !due || !at.Equal(now.Add(time.Second)) {
		t.Fatalf("the second within the pause: due %v, at %v", due, at)
	}
	b.judge(errEngine, now)
	if b.state(now) != Open {
		t.Fatal("a canary that failed did not eject")
	}
}

// Each stream begins well, so that failures are never in a row; the streams are.
func TestBreaker_StreamsThatBreakInARowEject(t *testing.T) {
	s := testServer(Decode)
	stream := func(err error) {
		l, claimed := s.Claim(Decode, curve.Work{}, false)
		if claimed != nil {
			t.Fatal(claimed)
		}
		l.Settle(nil)
		if err != nil {
			l.Broke(err)
		}
		l.Release()
	}
	for range 4 {
		stream(errEngine)
	}
	stream(nil)
	for range 4 {
		stream(errEngine)
	}
	if got := s.Breaker(Decode, time.Now()); got != Closed {
		t.Fatalf("four in a row, twice: %s", got)
	}
	stream(errEngine)
	if got := s.Breaker(Decode, time.Now()); got != Open {
		t.Fatalf("five in a row: %s", got)
	}
}

// A request that waits far longer than expected is no failure yet; a canary tells.
func TestLease_AnOverdueRequestAsksForACanary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		suspected := func() bool { _, due := s.breakers[1].canaryDue(0); return due }
		for _, settled := range []bool{true, false} {
			l, err := s.Claim(Decode, curve.Work{}, false)
			if err != nil {
				t.Fatal(err)
			}
			l.Sent(time.Second)
			time.Sleep(3900 * time.Millisecond)
			if settled {
				l.Settle(nil)
			}
			time.Sleep(time.Second)
			if suspected() == settled {
				t.Errorf("settled %v: suspected %v", settled, suspected())
			}
			l.Release()
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
	if c := s.breakers[1].gate.Load().Counts(); c.TotalFailures != 0 || c.TotalSuccesses != 0 {
		t.Fatalf("neutral outcomes were counted: %+v", c)
	}
}

func TestLease_EndingsRunOnceAndABrokenStreamCountsAgain(t *testing.T) {
	s := testServer(Decode)
	l, err := s.Claim(Decode, curve.Work{Tokens: 100}, false)
	if err != nil {
		t.Fatal(err)
	}
	l.Settle(nil)
	l.Settle(errEngine)
	if c := s.breakers[1].gate.Load().Counts(); c.TotalSuccesses != 1 || c.TotalFailures != 0 {
		t.Fatalf("a second verdict counted: %+v", c)
	}
	l.Broke(errEngine)
	if c := s.breakers[1].gate.Load().Counts(); c.TotalSuccesses != 1 || c.TotalFailures != 1 {
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
	if _, err := s.Claim(Decode, curve.Work{}, true); !errors.Is(err, ErrRefused) {
		t.Errorf("a prefill server took a decode: %v", err)
	}
	s.Drain = true
	if _, err := s.Claim(Prefill, curve.Work{}, true); !errors.Is(err, ErrRefused) {
		t.Errorf("a draining server took a claim: %v", err)
	}
}

// Who charged others with what was this server's fault is told since when, and once more
// when it is well again.
func TestBreaker_AFailedCanaryConvictsSinceTheLastThatPassed(t *testing.T) {
	b := newBreaker(DefaultBreaker())
	var told []time.Time
	b.convicted = func(since time.Time) { told = append(told, since) }
	start := time.Now()
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	b.judge(nil, at(1))
	b.judge(ErrProbeBusy, at(2))
	if len(told) != 0 {
		t.Fatalf("convicted of nothing: %v", told)
	}
	for second, verdict := range []error{3: ErrWrongAnswer, 4: ErrWrongAnswer, 5: nil, 6: nil, 7: ErrWrongAnswer} {
		if second >= 3 {
			b.judge(verdict, at(second))
		}
	}
	if want := []time.Time{at(1), at(1), at(1), at(6)}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
