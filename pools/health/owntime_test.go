package health

import (
	"testing"
	"time"
)

// A gap longer than two looks is time in which the process did not run.
func TestOwnTime_CountsOnlyWhatThisProcessRan(t *testing.T) {
	for _, c := range []struct {
		name string
		gaps []time.Duration
		want time.Duration
	}{
		{"on time", []time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, 200 * time.Millisecond},
		{"a busy machine", []time.Duration{180 * time.Millisecond}, 180 * time.Millisecond},
		{"stopped for four seconds", []time.Duration{4 * time.Second, 100 * time.Millisecond}, 300 * time.Millisecond},
		{"starved", []time.Duration{time.Second, time.Second, time.Second}, 600 * time.Millisecond},
	} {
		now := time.Time{}
		own := ownTime{step: 100 * time.Millisecond, last: now}
		for _, gap := range c.gaps {
			now = now.Add(gap)
			own.look(now)
		}
		if own.ran != c.want {
			t.Errorf("%s: %v, want %v", c.name, own.ran, c.want)
		}
	}
}
