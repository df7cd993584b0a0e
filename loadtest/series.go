package loadtest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// maxExact is how many values a series keeps as they are: 8 MB.
const maxExact = 1 << 20

// The histogram that a series becomes beyond maxExact values: microseconds up to
// a day, three significant digits.
const (
	histogramUnit   = time.Microsecond
	histogramTop    = int64(24 * time.Hour / histogramUnit)
	histogramDigits = 3
)

// A series collects durations and yields their percentiles: exact up to maxExact
// values, then within 0.1 % by an HDR histogram, so that a run of a day does not
// fill the memory. Count, mean and maximum are exact always. The zero value is
// an empty series.
type series struct {
	values    []time.Duration
	histogram *hdrhistogram.Histogram // nil while exact
	count     int
	sum, max  time.Duration
}

func (s *series) add(v time.Duration) {
	s.count++
	s.sum += v
	s.max = max(s.max, v)
	if s.histogram != nil {
		record(s.histogram, v)
		return
	}
	s.values = append(s.values, v)
	if len(s.values) >= maxExact {
		s.fold()
	}
}

// fold moves the values into the histogram.
func (s *series) fold() {
	s.histogram = hdrhistogram.New(1, histogramTop, histogramDigits)
	for _, v := range s.values {
		record(s.histogram, v)
	}
	s.values = nil
}

func record(h *hdrhistogram.Histogram, v time.Duration) {
	if err := h.RecordValue(min(int64(v/histogramUnit), histogramTop)); err != nil {
		panic(fmt.Sprintf("loadtest: %v does not fit a histogram up to a day: %v", v, err))
	}
}

// Summary describes one series, in seconds.
type Summary struct {
	Count int     `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
	Exact bool    `json:"exact"` // false: percentiles within 0.1 %
}

// summary sorts the series and describes it; all zero when it is empty.
func (s *series) summary() Summary {
	out := Summary{Count: s.count, Max: s.max.Seconds(), Exact: s.histogram == nil}
	if s.count == 0 {
		return out
	}
	out.Mean = s.sum.Seconds() / float64(s.count)
	slices.Sort(s.values)
	at := func(q float64) float64 { return percentile(s.values, q).Seconds() }
	if s.histogram != nil {
		at = func(q float64) float64 {
			return (time.Duration(s.histogram.ValueAtQuantile(q)) * histogramUnit).Seconds()
		}
	}
	out.P50, out.P90, out.P99 = at(50), at(90), at(99)
	return out
}

// percentile returns the q-th percentile (0..100) of sorted values by linear
// interpolation between the two nearest ranks, as numpy.percentile does by
// default.
func percentile(sorted []time.Duration, q float64) time.Duration {
	rank := q / 100 * float64(len(sorted)-1)
	low := int(math.Floor(rank))
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	fraction := rank - float64(low)
	return sorted[low] + time.Duration(math.Round(fraction*float64(sorted[low+1]-sorted[low])))
}
