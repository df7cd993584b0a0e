package pools

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestOutstanding_OnlyTheOldestProgresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(Prefill)
		queue := func() time.Duration { return s.InFlight(Prefill, time.Now()).Queue }
		claim := func(d time.Duration) *Lease {
			l, err := s.Claim(Prefill, Work{Tokens: 1000, Estimate: d}, false)
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
		if got := queue(); got != 2300*time.Millisecond { // 0.3 of the oldest, all of the next
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
