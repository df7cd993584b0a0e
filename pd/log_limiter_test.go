package pd

import (
	"testing"
	"time"
)

func TestLogLimiter_ALineAMinuteForEachFault(t *testing.T) {
	var l LogLimiter
	now := time.Unix(1_700_000_000, 0)
	for i, x := range []struct {
		fault string
		after time.Duration
		want  int
	}{
		{"a", 0, 1}, {"a", time.Second, 0}, {"b", 0, 1}, {"a", 58 * time.Second, 0},
		{"a", time.Second, 3}, {"a", time.Second, 0}, {"b", 0, 1}, {"b", time.Hour, 1}, // the faults before are over
	} {
		now = now.Add(x.after)
		if got := l.Add(x.fault, now); got != x.want {
			t.Errorf("%d: %d of %s, want %d", i, got, x.fault, x.want)
		}
	}
	if len(l.faults) != 1 {
		t.Errorf("%d faults are remembered, want the last one", len(l.faults))
	}
}
