package loadtest

import (
	"math"
	"slices"
	"testing"
	"time"
)

// Known values: numpy.percentile([15, 20, 35, 40, 50], q) and of one value.
func TestPercentile_AsNumpy(t *testing.T) {
	five := []time.Duration{15, 20, 35, 40, 50}
	for i := range five {
		five[i] *= time.Millisecond
	}
	for q, want := range map[float64]float64{0: 15, 25: 20, 40: 29, 50: 35, 90: 46, 99: 49.6, 100: 50} {
		if got := percentile(five, q).Seconds() * 1000; math.Abs(got-want) > 1e-6 {
			t.Errorf("p%v = %v, want %v", q, got, want)
		}
	}
	if got := percentile([]time.Duration{7}, 99); got != 7 {
		t.Errorf("p99 of one value is %v", got)
	}
}

func TestSeries_Empty(t *testing.T) {
	var s series
	if got := s.summary(); got != (Summary{Exact: true}) {
		t.Errorf("%+v", got)
	}
}

func TestSeries_BeyondItsBoundStaysWithinATenthOfAPercent(t *testing.T) {
	rng := newRand(1, 1)
	var s series
	var all []time.Duration
	for range maxExact + 5_000 {
		v := time.Duration(math.Exp(17 + 2*rng.NormFloat64())) // around 24 ms, up to minutes
		s.add(v)
		all = append(all, v)
	}
	got := s.summary()
	if got.Exact || s.values != nil {
		t.Fatal("the series still keeps all values")
	}
	slices.Sort(all)
	var sum time.Duration
	for _, v := range all {
		sum += v
	}
	for name, pair := range map[string][2]float64{
		"mean": {got.Mean, sum.Seconds() / float64(len(all))},
		"p50":  {got.P50, percentile(all, 50).Seconds()},
		"p90":  {got.P90, percentile(all, 90).Seconds()},
		"p99":  {got.P99, percentile(all, 99).Seconds()},
		"max":  {got.Max, all[len(all)-1].Seconds()},
	} {
		if math.Abs(pair[0]/pair[1]-1) > 0.001 {
			t.Errorf("%s is %v, want %v", name, pair[0], pair[1])
		}
	}
	if got.Count != len(all) {
		t.Errorf("count %d, want %d", got.Count, len(all))
	}
}

func TestSeries_HistogramHoldsADay(t *testing.T) {
	var s series
	s.fold()
	s.add(30 * 24 * time.Hour)
	s.add(0)
	if got := s.summary(); got.Count != 2 || got.P99 < 86_000 {
		t.Errorf("%+v", got)
	}
}
