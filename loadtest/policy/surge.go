package policy

import (
	"errors"
	"slices"
)

// Surge is how the rate of arrivals changes over a run, in parts of the trace's own rate: it
// rises evenly from one to another over the trace's time, and flash crowds multiply it. The
// requests and their order stay those of the trace; only their times change.
type Surge struct {
	From    float64      `yaml:"from"`    // at the beginning
	To      float64      `yaml:"to"`      // at the end of the trace's time, and after it
	Flashes []FlashCrowd `yaml:"flashes"` // one after another
}

// FlashCrowd is a time in which more requests come.
type FlashCrowd struct {
	At      float64 `yaml:"at"` // seconds of the run
	Seconds float64 `yaml:"seconds"`
	Factor  float64 `yaml:"factor"`
}

func (s *Surge) check() error {
	if s.From <= 0 || s.To <= 0 {
		return errors.New("surge: from and to must be positive")
	}
	for _, f := range s.Flashes {
		if f.At < 0 || f.Seconds <= 0 || f.Factor <= 0 {
			return errors.New("surge: flashes want at, and positive seconds and factor")
		}
	}
	return nil
}

// surgeStep is the time in seconds in which the rate is taken to be one.
const surgeStep = 0.5

// rate is that of arrivals at a time of the run, in parts of the trace's, whose time is span.
func (s *Surge) rate(now, span float64) float64 {
	rate := s.From + (s.To-s.From)*min(1, now/span)
	for _, f := range s.Flashes {
		if now >= f.At && now < f.At+f.Seconds {
			rate *= f.Factor
		}
	}
	return rate
}

// shift moves arrivals, which are in order, to the times at which so many have come: those at
// rate r are r times as near to each other.
func (s *Surge) shift(at []float64) {
	if len(at) == 0 {
		return
	}
	span := max(surgeStep, at[len(at)-1])
	now, passed := 0.0, 0.0 // of the run, and of the trace
	for i := range at {
		for {
			step := s.rate(now, span) * surgeStep
			if passed+step > at[i] {
				at[i] = now + (at[i]-passed)/step*surgeStep
				break
			}
			now, passed = now+surgeStep, passed+step
		}
	}
	slices.Sort(at) // rounding
}
