package loadtest

import (
	"math"
	"slices"
	"testing"
	"time"
)

// gather takes at most n times of s, in seconds.
func gather(s schedule, n int) []float64 {
	var out []float64
	for len(out) < n {
		at, ok := s()
		if !ok {
			break
		}
		out = append(out, at.Seconds())
	}
	return out
}

func TestPoisson_GapsAreExponential(t *testing.T) {
	const n, rps = 100_000, 20
	times := gather(poissonSchedule(rps, newRand(3, arrivalStream)), n)
	if !slices.IsSorted(times) {
		t.Fatal("arrivals go back in time")
	}
	var sum, squares float64
	long := 0 // gaps beyond the mean: a share of 1/e
	last := 0.0
	for _, at := range times {
		gap := at - last
		last = at
		sum += gap
		squares += gap * gap
		if gap > 1.0/rps {
			long++
		}
	}
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	if math.Abs(mean*rps-1) > 0.01 || math.Abs(deviation/mean-1) > 0.02 {
		t.Errorf("mean gap %v, deviation %v, want both %v", mean, deviation, 1.0/rps)
	}
	if share := float64(long) / n; math.Abs(share-1/math.E) > 0.01 {
		t.Errorf("%v of the gaps exceed the mean, want %v", share, 1/math.E)
	}
}

func TestPoisson_SameSeedSameTimes(t *testing.T) {
	a := gather(poissonSchedule(5, newRand(1, arrivalStream)), 100)
	b := gather(poissonSchedule(5, newRand(1, arrivalStream)), 100)
	c := gather(poissonSchedule(5, newRand(2, arrivalStream)), 100)
	if !slices.Equal(a, b) || slices.Equal(a, c) {
		t.Error("arrivals must follow from the seed and nothing else")
	}
}

func TestConstant_DoesNotDrift(t *testing.T) {
	times := gather(constantSchedule(3), 300_001)
	if times[0] != 0 || times[1] != 0.333333333 || times[300_000] != 100_000 {
		t.Errorf("got %v, %v, ..., %v", times[0], times[1], times[300_000])
	}
}

func TestBounded(t *testing.T) {
	for _, c := range []struct {
		until time.Duration
		limit int
		want  int
	}{
		{until: time.Second, want: 10}, // 0.0 to 0.9: an arrival at the end does not count
		{limit: 4, want: 4},
		{until: time.Second, limit: 4, want: 4},
		{until: 200 * time.Millisecond, limit: 4, want: 2},
		{want: 50}, // no bound: gather stops
	} {
		if got := len(gather(constantSchedule(10).bounded(c.until, c.limit), 50)); got != c.want {
			t.Errorf("until %v, limit %d: %d arrivals, want %d", c.until, c.limit, got, c.want)
		}
	}
	times := []time.Duration{1, 2, 3}
	if got := len(gather(listedSchedule(times).bounded(0, 0), 50)); got != 3 {
		t.Errorf("%d listed arrivals, want 3", got)
	}
}
