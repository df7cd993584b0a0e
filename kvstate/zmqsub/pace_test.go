package zmqsub

import (
	"testing"
	"time"
)

// A feed with a message in each look is slow or not by how many looks there are, and is slow again once it has had few for
// two times.
func TestPace_CountsByTime(t *testing.T) {
	const few, every = 16, 10 * time.Millisecond
	var p pace
	start := time.Unix(1_790_000_000, 0)
	for ms, c := range []struct {
		looks int // with a message each
		slow  bool
	}{{1, true}, {2, true}, {40, false}, {20, false}, {3, false}, {3, true}, {0, true}, {17, false}} {
		slow := false
		for look := range max(c.looks, 1) {
			slow = p.isSlow(min(c.looks, 1), few, start.Add(time.Duration(ms)*every+time.Duration(look)*time.Microsecond), every)
		}
		if slow != c.slow {
			t.Errorf("time %d, with %d messages: slow %v", ms, c.looks, slow)
		}
	}
	if !p.isSlow(1, few, start.Add(time.Hour), every) {
		t.Error("a message behind an hour without any is not slow")
	}
}
