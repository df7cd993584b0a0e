package pools

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
)

var errEngine = errors.New("engine failed")

func testServer(role Role) *Server {
	spec := Spec{URL: "http://10.0.0.1:8000", Role: role, Connector: "nixl"}
	l := newServerState(Default())
	l.health.Store(&Health{Up: true, Models: []Model{{ID: "m"}}})
	return &Server{Spec: spec, id: spec.ID(), fleet: &Fleet{}, serverState: l}
}

// use claims and settles once, and reports whether the claim was granted.
func use(t *testing.T, s *Server, leg Role, verdict error) bool {
	t.Helper()
	l, err := s.Claim(leg, curve.Work{}, false, time.Now())
	if err != nil {
		if !errors.Is(err, ErrRefused) {
			t.Fatalf("claim: %v", err)
		}
		return false
	}
	l.MarkSent(0, time.Now())
	l.RecordResult(verdict)
	l.Release()
	return true
}

// trip has the server ejected for decode.
func trip(t *testing.T, s *Server) {
	t.Helper()
	for range breaker.Default().Consecutive {
		use(t, s, Decode, errEngine)
	}
}

func TestClaim_FiveFailuresInARowCloseThatLegOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Both)
		for range 4 {
			use(t, s, Decode, errEngine)
		}
		if got := s.Breaker(Decode, time.Now()); got != breaker.Closed {
			t.Fatalf("after four failures: %s", got)
		}
		use(t, s, Decode, errEngine)
		if got := s.Breaker(Decode, time.Now()); got != breaker.Open {
			t.Fatalf("after five failures: %s", got)
		}
		if got := s.Breaker(Prefill, time.Now()); got != breaker.Closed {
			t.Fatalf("prefill's breaker is %s", got)
		}
		if use(t, s, Decode, nil) {
			t.Fatal("an open breaker granted a claim")
		}
	})
}

// Each stream begins well, so that failures are never in a row; the streams are.
func TestLease_StreamsThatBreakInARowEject(t *testing.T) {
	s := testServer(Decode)
	stream := func(err error) {
		l, claimed := s.Claim(Decode, curve.Work{}, false, time.Now())
		if claimed != nil {
			t.Fatal(claimed)
		}
		l.RecordResult(nil)
		if err != nil {
			l.RecordBrokenStream(err)
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
	if got := s.Breaker(Decode, time.Now()); got != breaker.Closed {
		t.Fatalf("four in a row, twice: %s", got)
	}
	stream(errEngine)
	if got := s.Breaker(Decode, time.Now()); got != breaker.Open {
		t.Fatalf("five in a row: %s", got)
	}
}

// A request that waits far longer than expected is no failure yet; a probe tells.
func TestLease_AnOverdueRequestAsksForAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		suspected := func() bool { _, due := s.breakers[1].ProbeDue(0); return due }
		for _, settled := range []bool{true, false} {
			l, err := s.Claim(Decode, curve.Work{}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			l.MarkSent(time.Second, time.Now())
			time.Sleep(3900 * time.Millisecond)
			if settled {
				l.RecordResult(nil)
			}
			time.Sleep(time.Second)
			if suspected() == settled {
				t.Errorf("settled %v: suspected %v", settled, suspected())
			}
			l.Release()
		}
	})
}

func TestLease_EndingsRunOnceAndABrokenStreamCountsAgain(t *testing.T) {
	s := testServer(Decode)
	suspected := func() bool { _, due := s.breakers[1].ProbeDue(0); return due }
	l, err := s.Claim(Decode, curve.Work{Tokens: 100}, false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l.RecordResult(nil)
	l.RecordResult(errEngine)
	if suspected() {
		t.Fatal("a second verdict counted")
	}
	l.RecordBrokenStream(errEngine)
	if !suspected() {
		t.Fatal("the broken stream did not count as a failure of its own")
	}
	l.Release()
	l.Release()
	if own := s.InFlight(Decode, time.Now()); own != (InFlight{}) {
		t.Fatalf("after release: %+v", own)
	}
}

func TestClaim_DrainingAndOtherRolesRefuse(t *testing.T) {
	s := testServer(Prefill)
	if _, err := s.Claim(Decode, curve.Work{}, true, time.Now()); !errors.Is(err, ErrRefused) {
		t.Errorf("a prefill server took a decode: %v", err)
	}
	s.Drain = true
	if _, err := s.Claim(Prefill, curve.Work{}, true, time.Now()); !errors.Is(err, ErrRefused) {
		t.Errorf("a draining server took a claim: %v", err)
	}
}
