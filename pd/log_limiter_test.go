package pd

import (
	"fmt"
	"slices"
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
	for i := range 2 * mostFaults {
		l.Add(fmt.Sprint(i), now)
	}
	if len(l.faults) > mostFaults {
		t.Errorf("%d faults are remembered, want %d at most", len(l.faults), mostFaults)
	}
}

// What each request meets, as while a chat template is rolled out, has a line of the log a minute.
func TestLogLimiter_WhatGoesOnIsLoggedOnceAMinute(t *testing.T) {
	var l LogLimiter
	start, logged := time.Now(), map[string][]int{}
	for second := range 130 {
		for _, server := range []string{"a", "b"} {
			if n := l.Add(server, start.Add(time.Duration(second)*time.Second)); n > 0 {
				logged[server] = append(logged[server], n)
			}
		}
	}
	if want := []int{1, 60, 60}; !slices.Equal(logged["a"], want) || !slices.Equal(logged["b"], want) {
		t.Errorf("logged %v, want %v of each", logged, want)
	}
}
