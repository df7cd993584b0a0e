package queue

import (
	"errors"
	"testing"
	"time"
)

// Who is refused comes back when those refused before have had their turn, and never later than in half a minute.
func TestReturnTimes(t *testing.T) {
	var r ReturnTimes
	now := time.Unix(1_800_000_000, 0)
	for i, x := range []struct{ passed, excess, service, want time.Duration }{
		{0, time.Second, 2 * time.Second, time.Second},
		{0, time.Second, 2 * time.Second, 3 * time.Second},
		{time.Second, -time.Second, 2 * time.Second, 3 * time.Second}, // its turn would be in time, at the cost of others
		{2 * time.Second, time.Second, time.Hour, 4 * time.Second},
		{0, 0, time.Second, 30 * time.Second},
		{29 * time.Second, 0, time.Second, time.Second},
		{time.Hour, 0, time.Second, 0},
	} {
		now = now.Add(x.passed)
		if in := r.Next(x.excess, x.service, now); in != x.want {
			t.Errorf("refusal %d: come back in %v, want %v", i, in, x.want)
		}
	}
}

func TestRefusal(t *testing.T) {
	err := error(&Refusal{Late: ErrDeadline, Return: time.Second})
	if !errors.Is(err, ErrDeadline) || errors.Is(err, ErrTimeout) || err.Error() != ErrDeadline.Error() || ReturnIn(err) != time.Second || ReturnIn(ErrDeadline) != 0 {
		t.Errorf("%v, come back in %v", err, ReturnIn(err))
	}
}
