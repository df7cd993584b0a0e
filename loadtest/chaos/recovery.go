package chaos

import (
	"slices"
	"time"

	"github.com/tandem-gateway/tandem/loadtest"
)

// How a request is distinguished from those of undisturbed times.
const (
	slowFactor = 3                      // times the 95th percentile before the first event
	slowFloor  = 100 * time.Millisecond // what a busy machine may add
)

// recovery is the longest time that a failure went on to show: from an event to
// the arrival of the last request before the next event that failed or was slow.
// Zero: none was. Repairs are events too, since what they do to requests counts,
// but a request in flight at an event says nothing of the time after it.
func recovery(ended []loadtest.Ended, events Events) (longest time.Duration) {
	if len(events) == 0 {
		return 0
	}
	limit := slowTTFT(ended, events[0].at)
	for _, r := range ended {
		if r.Kind == loadtest.OK && r.TTFT <= limit {
			continue
		}
		for _, e := range slices.Backward(events) {
			if r.Due >= e.at {
				longest = max(longest, r.Due-e.at)
				break
			}
		}
	}
	return longest
}

// slowTTFT is above what requests took before the first event.
func slowTTFT(ended []loadtest.Ended, first time.Duration) time.Duration {
	var before []time.Duration
	for _, r := range ended {
		if r.Due+r.TTFT < first && r.Kind == loadtest.OK {
			before = append(before, r.TTFT)
		}
	}
	if len(before) == 0 {
		return slowFloor
	}
	slices.Sort(before)
	return slowFactor*before[len(before)*95/100] + slowFloor
}
