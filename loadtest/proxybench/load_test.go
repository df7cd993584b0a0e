package proxybench

import (
	"testing"
	"time"
)

// An event is as late as it comes behind the pace that the least late one keeps: the first may be late itself. What
// comes before events are judged keeps no pace.
func TestPace_JudgesByTheLeastLateEvent(t *testing.T) {
	const ms = time.Millisecond
	began := time.Unix(1, 0)
	paced := pace{gap: 20 * ms, from: began}
	for i, c := range []struct{ at, late time.Duration }{{-45 * ms, 0}, {3 * ms, 0}, {20 * ms, 0}, {45 * ms, 5 * ms}, {60 * ms, 0}, {81 * ms, ms}} {
		if got := paced.late(began.Add(c.at)); got != c.late {
			t.Errorf("event %d is %v late, not %v", i, got, c.late)
		}
	}
}
