package sizing

import (
	"math"
	"time"
)

// Bin is the time that one value of a Series covers.
const Bin = 10 * time.Second

// Series is a rate measured over consecutive bins, oldest first, newest last.
type Series []float64

// Covers is the time that the series spans.
func (s Series) Covers() time.Duration { return time.Duration(len(s)) * Bin }

// Last returns the newest part of the series, all of it if it is shorter.
func (s Series) Last(span time.Duration) Series {
	return s[len(s)-min(len(s), int(span/Bin)):]
}

// Mean of an empty series is 0.
func (s Series) Mean() float64 {
	if len(s) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range s {
		sum += v
	}
	return sum / float64(len(s))
}

// noise is the standard deviation of a bin about the level at its time. It is taken
// from the differences of neighbours, which a slope or a single jump of the level
// changes little.
func (s Series) noise() float64 {
	if len(s) < 2 {
		return 0
	}
	sum := 0.0
	for i := 1; i < len(s); i++ {
		d := s[i] - s[i-1]
		sum += d * d
	}
	return math.Sqrt(sum / 2 / float64(len(s)-1))
}

// slope is the least-squares growth per bin, shrunk by what noise alone would give:
// a slope of one standard error or less counts as none (James-Stein, positive part).
func (s Series) slope(noise float64) float64 {
	n := float64(len(s))
	if n < 3 {
		return 0
	}
	mean, across, along := s.Mean(), 0.0, 0.0
	for i, v := range s {
		x := float64(i) - (n-1)/2
		across += x * (v - mean)
		along += x * x
	}
	slope, err := across/along, noise/math.Sqrt(along)
	if slope == 0 {
		return 0
	}
	return slope * max(0, 1-err*err/(slope*slope))
}

// RecentSpan is how far back a change of level is looked for, and surprise is how
// many standard errors make one.
const (
	RecentSpan  = time.Minute
	significant = 3.5
)

// expectation is what a series leads to.
type expectation struct {
	Level float64 // expected rate at the horizon
	Noise float64 // standard deviation of one bin about its level
	Burst bool    // the last minute is far above what the series led to expect
}

// forecast continues the series by its trend to the horizon. Where the last minute
// contradicts the trend, it is believed instead: a burst is followed at once, and
// after one the window is not waited for.
func (s Series) forecast(horizon time.Duration) expectation {
	f := expectation{Noise: s.noise()}
	slope := s.slope(f.Noise)
	now := s.Mean() + slope*float64(len(s)-1)/2
	f.Level = max(0, now+slope*float64(horizon)/float64(Bin))
	recent := s.Last(RecentSpan)
	if len(recent) == len(s) {
		return f
	}
	expected := max(0, now-slope*float64(len(recent)-1)/2)
	off := recent.Mean() - expected
	if math.Abs(off) > significant*f.Noise/math.Sqrt(float64(len(recent))) {
		f.Level, f.Burst = recent.Mean(), off > 0
	}
	return f
}
