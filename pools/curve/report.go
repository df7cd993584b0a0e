package curve

import (
	"math"
	"time"
)

// Report is what one replica has seen of a curve, as others are told: the sums of its own
// samples since it started, of which differences are news, and what it believes, for
// replicas that know nothing yet.
type Report struct {
	Works      uint64  `json:"n,omitempty"`
	Observed   float64 `json:"t,omitempty"` // seconds
	Predicted  float64 `json:"s,omitempty"` // seconds that the prior predicted of them
	Curve      Curve   `json:"c"`
	Confidence float64 `json:"k"` // how much of the curve was shown lately, 0..1
}

// Valid reports whether the numbers may be what some replica saw: others may write to
// what they are read from.
func (s *Report) Valid() bool {
	ok := true
	for _, x := range []float64{s.Observed, s.Predicted, s.Curve[0], s.Curve[1], s.Curve[2]} {
		ok = ok && x >= 0 && x < 1e12
	}
	return ok && s.Confidence >= 0 && s.Confidence <= 1
}

// Report returns what others are to be told.
func (l *Learned) Report(now time.Time) Report {
	confidence := l.Confidence(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.own
	s.Observed, s.Predicted, s.Confidence = rounded(s.Observed), rounded(s.Predicted), rounded(confidence)
	for i, c := range l.current {
		s.Curve[i] = rounded(c)
	}
	return s
}

// rounded keeps nine digits: numbers travel as text.
func rounded(x float64) float64 {
	if x == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(x)))-8)
	return math.Round(x/unit) * unit
}

// Receive takes in what another replica tells. What it saw since it told of it before counts
// as if it were seen here. Where it did not tell before, what it believes is adopted
// unless more is known here; age is how long ago that was told.
func (l *Learned) Receive(before *Report, s Report, age time.Duration, now time.Time) {
	if before == nil {
		l.adopt(s, age, now)
		return
	}
	if s.Works < before.Works {
		before = &Report{} // it has started anew
	}
	works := s.Works - before.Works
	if works == 0 {
		return
	}
	l.lockToLearn()
	defer l.mu.Unlock()
	l.countLocked()
	l.followLocked(step{observed: max(0, s.Observed-before.Observed), predicted: max(0, s.Predicted-before.Predicted), samples: int(min(works, maxReceived)), silent: l.silentLocked(now.Add(-age))})
	l.countSamplesLocked(works, now.Add(-age))
}

// maxReceived bounds the works of which news comes at once: beyond it the past counts nothing.
const maxReceived = 1 << 16

// adopt believes a curve as if it had been shown here by typical works.
func (l *Learned) adopt(s Report, age time.Duration, now time.Time) {
	confidence := s.Confidence * l.weightAfter(age)
	if confidence < l.Confidence(now)+0.05 { // what was adopted there from here is no news
		return
	}
	l.lockToLearn()
	defer l.mu.Unlock()
	l.countLocked()
	var all step
	for _, x := range l.anchors {
		all.observed += s.Curve.Seconds(x)
		all.predicted += l.prior.Seconds(x)
		all.samples++
	}
	for range int(math.Ceil(confidence * knownAfter)) {
		l.enterLocked(all)
		for _, x := range l.anchors {
			if y := s.Curve.Seconds(x); y > 0 {
				l.add(x, y, 1/(y*y))
			}
		}
	}
	// It is known here as well as there, and fades from then on.
	l.countSamplesLocked(knownAfter, now.Add(time.Duration(math.Log2(confidence)*float64(l.forgetting))))
}
