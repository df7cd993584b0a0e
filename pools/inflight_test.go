package pools

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// Two prompts that were sent at once are one step: it progresses, and never below 0.3 of it.
func TestOutstanding_TheStepThatRunsProgresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Prefill)
		queue := func() time.Duration { return s.InFlight(Prefill, time.Now()).Queue }
		claim := func(d time.Duration) *Lease {
			l, err := s.Claim(Prefill, curve.Work{Tokens: 1000, Estimate: d}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		if queue() != 0 {
			t.Errorf("idle: %v", queue())
		}
		first, second := claim(time.Second), claim(2*time.Second)
		if got := queue(); got != 3*time.Second {
			t.Errorf("just claimed: %v", got)
		}
		time.Sleep(400 * time.Millisecond)
		if got := queue(); got != 2600*time.Millisecond {
			t.Errorf("after 400 ms: %v", got)
		}
		time.Sleep(10 * time.Second)
		if got := queue(); got != 900*time.Millisecond {
			t.Errorf("after an overrun: %v", got)
		}
		first.Release()
		if got := queue(); got != 2*time.Second {
			t.Errorf("after the first ended: %v", got)
		}
		second.Release()
		if got := s.InFlight(Prefill, time.Now()); got != (InFlight{}) {
			t.Errorf("after all ended: %+v", got)
		}
	})
}

// A decode server that computes prompts has them ahead like a prefill server, and learns
// from them how fast it does it.
func TestLease_APromptOfADecodeServerIsWorkAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Decode)
		x := curve.PrefillFeatures(1000, 0)
		before := s.PrefillCurve().Seconds(x)
		for range 60 {
			l, err := s.Claim(Decode, curve.Work{Tokens: 1000}, false, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			l.MarkSent(time.Second, time.Now())
			l.BeginLocalPrefill(curve.Work{Tokens: 1000, Estimate: time.Second}, time.Now())
			if got := s.InFlight(Prefill, time.Now()); got.Queue != time.Second || got.Requests != 1 {
				t.Fatalf("ahead: %+v", got)
			}
			time.Sleep(time.Duration(3 * before * float64(time.Second)))
			l.EndLocalPrefill(1000, 0, 0, time.Now())
			if got := s.InFlight(Prefill, time.Now()); got != (InFlight{}) {
				t.Fatalf("after the first token: %+v", got)
			}
			l.Release()
		}
		if got := s.PrefillCurve().Seconds(x) / before; got < 2.6 || got > 3.2 {
			t.Errorf("60 prompts took three times as long as believed; now believed %.2f times", got)
		}
		l, err := s.Claim(Decode, curve.Work{Tokens: 1000}, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		l.BeginLocalPrefill(curve.Work{Tokens: 1000, Estimate: time.Second}, time.Now())
		l.Release() // it failed before its first token
		if got := s.InFlight(Prefill, time.Now()); got != (InFlight{}) {
			t.Errorf("after the end of the lease: %+v", got)
		}
	})
}
