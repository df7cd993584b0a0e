package curve

import (
	"math"
	"testing"
	"time"
)

// shownWorks is what works of one length took.
type shownWorks struct {
	n                 int
	predicted, served time.Duration
}

// support is what servers support that have shown some works each.
func support(confidence float64, servers ...[]shownWorks) *Support {
	var all Shown
	for _, shown := range servers {
		var e Evidence
		for _, w := range shown {
			for range w.n {
				e.Observe(Completion{Work: Work{Estimate: w.predicted}, Served: w.served, Alone: true})
			}
		}
		all.Add(&e, confidence)
	}
	s := all.Support()
	return &s
}

// supportOf is what one server supports of which no replica has reported anything.
func supportOf(e *Evidence) *Support {
	var shown Shown
	shown.Add(e, 0)
	s := shown.Support()
	return &s
}

func TestSupport_Seconds(t *testing.T) {
	const ms = time.Millisecond
	short, long := shownWorks{10, 100 * ms, 100 * ms}, shownWorks{10, 10 * time.Second, 10 * time.Second}
	for _, c := range []struct {
		name            string
		servers         [][]shownWorks
		predicted, want float64
	}{
		{"nothing was shown", [][]shownWorks{nil, nil}, 5, 0},
		{"as predicted", [][]shownWorks{{short, long}}, 10, 10},
		{"one that took longer says nothing more", [][]shownWorks{{{1, time.Second, 9 * time.Second}}}, 1, 1},
		{"one work is enough", [][]shownWorks{{{1, time.Second, time.Second}}}, 1, 1},
		{"two thirds of it", [][]shownWorks{{{10, 3 * time.Second, 2 * time.Second}}}, 3, 3},
		{"a hundredth: twice as long at most", [][]shownWorks{{{10, 10 * time.Second, 100 * ms}}}, 10, 0.2},
		{"only short ones were seen", [][]shownWorks{{short}}, 30, 8 * 0.0625}, // of 62.5 to 125 ms
		{"which took a fourth", [][]shownWorks{{{10, 100 * ms, 25 * ms}}}, 30, 8 * 0.0625 / 2},
		{"a little longer than any", [][]shownWorks{{short}}, 0.2, 0.2},
		{"only long ones were seen", [][]shownWorks{{long}}, 0.1, 0.1},
		{"which took a fourth too", [][]shownWorks{{{10, 10 * time.Second, 2500 * ms}}}, 0.1, 0.05},
		{"another server has shown it", [][]shownWorks{{short}, {long}}, 10, 10},
		{"it took long once", [][]shownWorks{{{3, 10 * time.Second, 100 * ms}, {1, 10 * time.Second, 10 * time.Second}}}, 10, 7},
		{"shorter than all classes", [][]shownWorks{{short}}, 1e-9, 1e-9},
		{"longer than all classes", [][]shownWorks{{{1, 1e6 * time.Second, 1e6 * time.Second}}}, 1e6, 1e6},
		{"nothing is predicted", [][]shownWorks{{short}}, 0, 0},
	} {
		s := support(0, c.servers...)
		if got := s.Seconds(c.predicted); math.Abs(got-c.want) > 0.03*c.want {
			t.Errorf("%s: %.4f s of %v are supported, want %v", c.name, got, c.predicted, c.want)
		}
	}
}

// A step that finishes several works takes its fixed part once, and the first to be answered bears it all.
func TestSupport_WorksOfOneStepTogetherTookWhatTheyWerePredictedTo(t *testing.T) {
	const works, fixed, own = 20, 300 * time.Millisecond, 10 * time.Millisecond
	var e Evidence
	for i := range 10 * works {
		c := Completion{Work: Work{Estimate: fixed + own, Shared: fixed}}
		if i%works == 0 {
			c.Served = fixed + works*own
		}
		e.Observe(c)
	}
	s := supportOf(&e)
	if got, want := s.Seconds((fixed + own).Seconds()), (fixed + own).Seconds(); got != want {
		t.Errorf("%.3f s are supported of one, want %.3f", got, want)
	}
	tally := &e.byTime[timeClass((fixed + own).Seconds())]
	if ratio := tally.served / tally.predicted; math.Abs(ratio-1) > 0.01 {
		t.Errorf("they took %.2f of what was predicted", ratio)
	}
}

// What was measured elsewhere counts: before the server came always, by other replicas until
// something was measured here.
func TestSupport_WhatWasMeasuredElsewhere(t *testing.T) {
	reported := support(0.5, nil)
	if got := reported.Seconds(30); reported.None() || got != 30 {
		t.Errorf("other replicas know the server: %v s of 30", got)
	}
	var e Evidence
	e.Measured = true
	for name, shown := range map[string]shownWorks{"nothing": {}, "short works": {5, 100 * time.Millisecond, 100 * time.Millisecond}} {
		for range shown.n {
			e.Observe(Completion{Work: Work{Estimate: shown.predicted}, Served: shown.served})
		}
		if s := supportOf(&e); s.None() || s.Seconds(30) != 30 {
			t.Errorf("its curve was measured, and it has shown %s: %v s of 30", name, s.Seconds(30))
		}
	}
	e.Observe(Completion{Work: Work{Estimate: 30 * time.Second}, Served: 3 * time.Second, Alone: true})
	if s := supportOf(&e); math.Abs(s.Seconds(30)-6) > 1e-9 {
		t.Errorf("it took a tenth: %v s of 30", s.Seconds(30))
	}
}

func TestSupport_OfSeveralIsOfEach(t *testing.T) {
	s := support(0, []shownWorks{{10, 100 * time.Millisecond, 100 * time.Millisecond}})
	for n, want := range map[int]float64{-1: 8 * 0.0625, 0: 8 * 0.0625, 1: 8 * 0.0625, 20: 2} {
		if got := s.Of(2, n); math.Abs(got-want) > 1e-9 {
			t.Errorf("2 s of %d works: %v are supported, want %v", n, got, want)
		}
	}
}

// A server that is much faster than believed answers all in no time beside what was predicted: they are
// no step without end.
func TestEvidence_WorksThatTookNothingAreOfOneStepForAWhile(t *testing.T) {
	var e Evidence
	e.Observe(Completion{Work: Work{Estimate: time.Second}, Served: 10 * time.Millisecond})
	long := Completion{Work: Work{Estimate: 10 * time.Second}, Served: 10 * time.Millisecond}
	for range maxStep - 1 {
		e.Observe(long)
	}
	if got := e.byTime[timeClass(10)]; got.predicted != 0 {
		t.Errorf("%d works begin another step: %+v", maxStep, got)
	}
	if e.Observe(long); e.byTime[timeClass(10)] != (tally{10, 0.01}) {
		t.Errorf("a step has more than %d works: %+v", maxStep, e.byTime[timeClass(10)])
	}
}
