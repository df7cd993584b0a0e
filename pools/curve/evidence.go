package curve

import (
	"math"
	"sync"
)

// Evidence is how long works took beside what was predicted of them, by the length that was predicted:
// what a forecast must rest on before a request is refused for it. A curve knows how long a work takes
// that it has not seen only by what shorter ones took, or by its prior, and how much of a prompt is
// cached may be unknown: predictions of either kind may be off by a hundred times. The zero value is a
// server that has shown nothing. Safe for concurrent use.
type Evidence struct {
	// Measured: the prior of its curve was measured of such servers. Set before its first use.
	Measured bool

	mu     sync.Mutex // guards the rest
	byTime [timeClasses]tally
	// The class of the work that was the first to be answered in the latest step of the server, and how many
	// have been in all.
	latest, inLatest int
}

// tally is sums over works of one class, in seconds; both fade.
type tally struct{ predicted, served float64 }

const (
	timeClasses  = 24  // of predicted times, each twice as long as the one before
	firstClass   = -10 // of up to 2^-9 s
	evidenceKeep = 0.8 // weight of the past at each step: a memory of five

	// supportedExcess is how many times as long as measured a prediction may be and counts in full:
	// works that a step finishes together do not tell how long each took.
	supportedExcess = 2.0
	// supportedReach is how many times as long as any that was measured a work may be, and counts.
	supportedReach = 8.0
)

// timeClass is the class of a time that is not negative: by its binary exponent, since it is asked for each
// request that waits. It begins at 2^(firstClass + class) seconds.
func timeClass(seconds float64) int {
	exponent := int(math.Float64bits(seconds)>>52) - 1023
	return min(max(0, exponent-firstClass), timeClasses-1)
}

// Observe notes a work that has ended. Of those that one step of an engine finishes the first to be
// answered bears all the time, so that they count as one: in the class of the first, and what the step
// takes whatever is in it once.
func (e *Evidence) Observe(c Completion) {
	predicted, served := c.Estimate.Seconds(), c.Served.Seconds()
	if predicted <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if same := !c.Alone && served < sameStep*predicted; same && e.inLatest > 0 && e.inLatest < maxStep {
		e.inLatest++
		e.byTime[e.latest].predicted += c.own().Seconds()
		e.byTime[e.latest].served += served
		return
	}
	e.latest, e.inLatest = timeClass(predicted), 1
	t := &e.byTime[e.latest]
	t.predicted = evidenceKeep*t.predicted + predicted
	t.served = evidenceKeep*t.served + served
}

// Support says how far what was measured supports predicted times.
type Support struct {
	none  bool
	limit [timeClasses]float64 // the most seconds that count of a prediction, by its class
	share [timeClasses]float64 // of them
}

// Shown is what servers have shown together.
type Shown struct {
	byTime                  [timeClasses]tally
	own, measured, reported bool
}

// Add adds what one server has shown, and how much of its curve it has shown lately.
func (a *Shown) Add(e *Evidence, confidence float64) {
	a.measured, a.reported = a.measured || e.Measured, a.reported || confidence > 0
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, t := range e.byTime {
		a.byTime[i].predicted += t.predicted
		a.byTime[i].served += t.served
		a.own = a.own || t.predicted > 0
	}
}

// Support is what servers support that have shown so much.
func (a *Shown) Support() (s Support) {
	if s.none = !a.own && !a.measured && !a.reported; s.none {
		return s
	}
	if !a.own { // other replicas know, or it is known from before
		for class := range s.limit {
			s.limit[class], s.share[class] = math.Inf(1), 1
		}
		return s
	}
	first := 0
	for a.byTime[first].predicted == 0 {
		first++
	}
	share, limit := a.byTime[first].share(), math.Inf(1) // of the nearest class that was measured and is shorter, else of the nearest that is longer
	for class := range s.limit {
		switch {
		case a.byTime[class].predicted > 0:
			share, limit = a.byTime[class].share(), math.Ldexp(supportedReach, firstClass+class)
			s.limit[class], s.share[class] = math.Inf(1), share
		case a.measured: // it is known from before
			s.limit[class], s.share[class] = math.Inf(1), 1
		default:
			s.limit[class], s.share[class] = limit, share
		}
	}
	return s
}

// share is how much of a prediction is supported by what was measured of its class, where something was.
func (t *tally) share() float64 { return min(1, supportedExcess*t.served/t.predicted) }

// None reports whether it supports no prediction at all.
func (s *Support) None() bool { return s.none }

// Seconds is how many of the predicted seconds of a work are supported: all, unless works of that
// length took less than half as long. Where none of that length was measured the nearest that is
// shorter counts, and of the prediction at most eight times its length; where there is none either,
// the nearest that is longer.
func (s *Support) Seconds(predicted float64) float64 {
	class := timeClass(predicted)
	return min(predicted, s.limit[class]) * s.share[class]
}

// Of is Seconds of so many works together.
func (s *Support) Of(predicted float64, works int) float64 {
	if works <= 1 {
		return s.Seconds(predicted)
	}
	return float64(works) * s.Seconds(predicted/float64(works))
}
