// Package curve says how long work takes on a server, and how much of it is ahead: curves of
// prefills and decode steps, learned from what a server shows; the features of the work that
// they are functions of; and the backlog of what was sent and has not come back. It knows no
// server and nothing of how these numbers travel. pools, pd, autoscale and the simulators
// import it; it imports the standard library only.
package curve

import "time"

// Curve is a time that grows linearly with three features of the work. Units are
// seconds per feature; what the features are, PrefillFeatures and StepFeatures say.
type Curve [3]float64

// Features are what a time depends on, scaled so that their coefficients are of
// like size.
type Features [3]float64

// PrefillFeatures are those of a prefill of new tokens behind cached ones: one,
// thousands of new tokens, and millions of what attention works on: the square of the
// whole less that of the cached part, n (n + 2c). Source of the form: Mooncake FAST'25,
// section 4.
func PrefillFeatures(newTokens, cached int) Features {
	n, c := float64(newTokens), float64(cached)
	return Features{1, n / 1e3, n * (n + 2*c) / 1e6}
}

// StepFeatures are those of one decode step: one, sequences in the batch, and
// millions of tokens of KV that the step reads.
func StepFeatures(sequences, kvTokens int) Features {
	return Features{1, float64(sequences), float64(kvTokens) / 1e6}
}

// PerToken is the seconds that one token of KV adds to a decode step.
func (c Curve) PerToken() float64 { return c[2] / 1e6 }

// Fixed is the seconds that the work takes however small it is: of a prefill what a step of the
// engine takes whatever is in it.
func (c Curve) Fixed() float64 { return max(0, c[0]) }

// Seconds is the time of work with the given features.
func (c Curve) Seconds(x Features) float64 { return x.On(&c) }

// On is Seconds of a curve: where there are many of them, copies take longer than the sum.
func (x *Features) On(c *Curve) float64 {
	seconds := c[0]*x[0] + c[1]*x[1] + c[2]*x[2]
	if seconds < 0 { // max costs as much as the rest
		return 0
	}
	return seconds
}

// Time is Seconds as a duration.
func (c Curve) Time(x Features) time.Duration {
	return time.Duration(c.Seconds(x) * float64(time.Second))
}
