package loadtest

import (
	"math"
	"math/rand/v2"
	"time"
)

// A schedule yields arrival times, counted from the start of the run and never
// falling; false when there are no more. It knows nothing of answers: that is
// what makes the loop open.
type schedule func() (at time.Duration, ok bool)

// poissonSchedule has exponential gaps with mean 1/rps and no end.
func poissonSchedule(rps float64, rng *rand.Rand) schedule {
	var seconds float64 // summed as float64: rounding each gap to a nanosecond would shift the rate
	return func() (time.Duration, bool) {
		seconds += rng.ExpFloat64() / rps
		return time.Duration(seconds * float64(time.Second)), true
	}
}

// constantSchedule arrives at 0, 1/rps, 2/rps, ... and has no end.
func constantSchedule(rps float64) schedule {
	n := 0
	return func() (time.Duration, bool) {
		at := time.Duration(math.Round(float64(n) / rps * float64(time.Second)))
		n++
		return at, true
	}
}

// listedSchedule yields the given times.
func listedSchedule(times []time.Duration) schedule {
	return func() (time.Duration, bool) {
		if len(times) == 0 {
			return 0, false
		}
		at := times[0]
		times = times[1:]
		return at, true
	}
}

// bounded ends s before the given time and after limit arrivals; 0 is no bound.
func (s schedule) bounded(until time.Duration, limit int) schedule {
	n := 0
	return func() (time.Duration, bool) {
		if limit > 0 && n >= limit {
			return 0, false
		}
		at, ok := s()
		if !ok || until > 0 && at >= until {
			return 0, false
		}
		n++
		return at, true
	}
}
