package curve

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

var (
	testNow     = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	testPrior   = Curve{0.0165, 0.0152, 0.00042}
	testAnchors = []Features{PrefillFeatures(256, 0), PrefillFeatures(4096, 0), PrefillFeatures(32768, 0)}
)

// prompt draws a prompt of the kind that traffic has: most short, a few long.
func prompt(r *rand.Rand) Features {
	n := int(math.Exp(5 + 4*r.Float64()))
	return PrefillFeatures(n, r.IntN(2*n))
}

// off is how far a curve is from the truth, relative, at its worst over typical
// prompts.
func off(c, truth Curve) (worst float64) {
	for _, n := range []int{200, 1000, 8000, 30000} {
		x := PrefillFeatures(n, 0)
		worst = max(worst, math.Abs(c.Seconds(x)/truth.Seconds(x)-1))
	}
	return worst
}

func TestLearned_FindsAServerThatDiffersInShape(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	l := NewLearned(testPrior, testAnchors, time.Minute)
	truth := Curve{0.005, 0.04, 0.0001}
	for range 300 {
		x := prompt(r)
		noise := math.Exp(0.1 * r.NormFloat64())
		l.Observe(x, time.Duration(truth.Seconds(x)*noise*float64(time.Second)), testNow)
	}
	if e := off(l.Curve(), truth); e > 0.35 {
		t.Errorf("off by %.0f %%: %v, truth %v", 100*e, l.Curve(), truth)
	}
}

func TestLearned_TwiceAsSlowIsSeenWithinFiftySamplesAndForgotten(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	l := NewLearned(testPrior, testAnchors, time.Minute)
	run := func(factor float64, n int) {
		for range n {
			x := prompt(r)
			noise := math.Exp(0.1 * r.NormFloat64())
			l.Observe(x, time.Duration(factor*testPrior.Seconds(x)*noise*float64(time.Second)), testNow)
		}
	}
	slow := Curve{2 * testPrior[0], 2 * testPrior[1], 2 * testPrior[2]}
	run(1, 200)
	if e := off(l.Curve(), testPrior); e > 0.15 {
		t.Errorf("a server as expected: off by %.0f %%", 100*e)
	}
	run(2, 50)
	if e := off(l.Curve(), slow); e > 0.2 {
		t.Errorf("50 samples after it turned slow: off by %.0f %%", 100*e)
	}
	run(1, 50)
	if e := off(l.Curve(), testPrior); e > 0.25 {
		t.Errorf("50 samples after it healed: off by %.0f %%", 100*e)
	}
}

// Prompts of one size pin the curve there, and yet it follows a server that turns slow.
func TestLearned_AServerThatTurnsSlowIsSeenAtOneSampleSizeToo(t *testing.T) {
	for _, factor := range []float64{2, 5, 20} {
		l := NewLearned(testPrior, testAnchors, time.Minute)
		x := PrefillFeatures(600, 0)
		run := func(factor float64, n int) (seen int) {
			for seen < n && math.Abs(l.Curve().Seconds(x)/testPrior.Seconds(x)/factor-1) > 0.25 {
				l.Observe(x, time.Duration(factor*testPrior.Seconds(x)*float64(time.Second)), testNow)
				seen++
			}
			return seen
		}
		for range 50 {
			l.Observe(x, time.Duration(testPrior.Seconds(x)*float64(time.Second)), testNow)
		}
		slow, most := run(factor, 100), 0.0
		for range 100 {
			l.Observe(x, time.Duration(factor*testPrior.Seconds(x)*float64(time.Second)), testNow)
			most = max(most, l.Curve().Seconds(x)/testPrior.Seconds(x)/factor)
		}
		healed := run(1, 100)
		t.Logf("%.0f times as slow: seen after %d samples, at most %.2f of it believed, healed after %d", factor, slow, most, healed)
		if most > 1.35 {
			t.Errorf("believed %.2f times as slow as it is", most)
		}
		if slow > 50 || healed > 50 {
			t.Errorf("%.0f times as slow: seen after %d samples, healed after %d", factor, slow, healed)
		}
	}
}

func TestLearned_OneSampleSizeTeachesAllSizes(t *testing.T) {
	l := NewLearned(testPrior, testAnchors, time.Minute)
	x := PrefillFeatures(1000, 0)
	for range 60 {
		l.Observe(x, time.Duration(3*testPrior.Seconds(x)*float64(time.Second)), testNow)
	}
	truth := Curve{3 * testPrior[0], 3 * testPrior[1], 3 * testPrior[2]}
	if e := off(l.Curve(), truth); e > 0.2 {
		t.Errorf("off by %.0f %% where there were no samples", 100*e)
	}
}

func TestLearned_OutliersMoveItLittle(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	l := NewLearned(testPrior, testAnchors, time.Minute)
	for i := range 400 {
		x := prompt(r)
		y := testPrior.Seconds(x)
		if i%10 == 9 {
			y *= 10 // a stall, a preemption, another tenant
		}
		l.Observe(x, time.Duration(y*float64(time.Second)), testNow)
	}
	if e := off(l.Curve(), testPrior); e > 0.4 {
		t.Errorf("a tenth of outliers put it off by %.0f %%", 100*e)
	}
}

// Of works that end together the first took all the time, the others none, and what a step takes
// whatever is in it they took once.
func TestLearned_ServedFollowsABusyServer(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	l := NewLearned(testPrior, testAnchors, time.Minute)
	for range 40 {
		a, b := prompt(r), prompt(r)
		both := 2 * (testPrior.Seconds(a) + testPrior.Seconds(b) - testPrior.Fixed())
		l.ObserveServed(a, time.Duration(both*float64(time.Second)), testNow)
		l.ObserveServed(b, 0, testNow)
	}
	slow := Curve{2 * testPrior[0], 2 * testPrior[1], 2 * testPrior[2]}
	if e := off(l.Curve(), slow); e > 0.2 {
		t.Errorf("off by %.0f %%", 100*e)
	}
}

// What works took at the most makes a server faster that is believed to be slower, by their sum and not by
// the least of them, and no server slower.
func TestLearned_AtMostBoundsFromAboveAlone(t *testing.T) {
	for times, want := range map[float64]float64{0.01: 0.01, 0.5: 0.5, 3: 1} {
		r := rand.New(rand.NewPCG(4, 1))
		l := NewLearned(testPrior, testAnchors, time.Minute)
		for range 200 {
			a, b := prompt(r), prompt(r)
			both := times * (testPrior.Seconds(a) + testPrior.Seconds(b) - testPrior.Fixed())
			l.ObserveAtMost(a, time.Duration(both*float64(time.Second)), testNow)
			l.ObserveAtMost(b, 0, testNow)
		}
		if e := off(l.Curve(), Curve{want * testPrior[0], want * testPrior[1], want * testPrior[2]}); e > 0.2 {
			t.Errorf("at most %v times as long: off by %.0f %%", times, 100*e)
		}
		if known := l.Confidence(testNow) > 0; known != (want < 1) {
			t.Errorf("at most %v times as long: known %v", times, known)
		}
	}
	l := NewLearned(testPrior, testAnchors, time.Minute)
	for range int(knownAfter) - 1 {
		l.ObserveAtMost(PrefillFeatures(1000, 0), time.Millisecond, testNow)
	}
	if l.Curve() != testPrior {
		t.Error("a few short gaps are believed")
	}
}

// What was learned while it was idle does not hold a server there that is slow when busy.
func TestLearned_AShapeFollowsTheSpeed(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	l := NewLearned(testPrior, testAnchors, time.Minute)
	shape := Curve{0.05, 0.03, 0.0001}
	for range 100 {
		x := prompt(r)
		l.Observe(x, time.Duration(shape.Seconds(x)*float64(time.Second)), testNow)
	}
	for range 60 {
		x := prompt(r)
		l.ObserveServed(x, time.Duration(3*shape.Seconds(x)*float64(time.Second)), testNow)
	}
	slow := Curve{3 * shape[0], 3 * shape[1], 3 * shape[2]}
	if e := off(l.Curve(), slow); e > 0.35 {
		t.Errorf("off by %.0f %%: %v, truth %v", 100*e, l.Curve(), slow)
	}
}

func TestLearned_NonsenseIsNoCurve(t *testing.T) {
	l := NewLearned(testPrior, testAnchors, time.Minute)
	l.Observe(Features{}, time.Second, testNow)
	l.Observe(PrefillFeatures(0, 0), -time.Second, testNow)
	l.ObserveServed(PrefillFeatures(10, 0), -time.Second, testNow)
	for range 100 {
		l.Observe(PrefillFeatures(math.MaxInt32, math.MaxInt32), time.Nanosecond, testNow)
	}
	for _, c := range l.Curve() {
		if c < 0 || math.IsNaN(c) || math.IsInf(c, 0) {
			t.Fatalf("%v", l.Curve())
		}
	}
}

func TestLearned_WhatAServerShowedLosesWeightWithoutSamples(t *testing.T) {
	l := NewLearned(testPrior, testAnchors, time.Minute)
	if confidence := l.Confidence(testNow); confidence != 0 {
		t.Errorf("a new server: %.2f is known", confidence)
	}
	for i := range 8 {
		if confidence := l.Confidence(testNow); confidence != float64(i)/8 {
			t.Errorf("after %d samples %.2f is known", i, confidence)
		}
		l.Observe(PrefillFeatures(2000, 0), time.Second, testNow)
	}
	for after, want := range map[time.Duration]float64{0: 1, time.Minute: 0.5, 10 * time.Minute: 1.0 / 1024} {
		if confidence := l.Confidence(testNow.Add(after)); math.Abs(confidence-want) > 1e-9 {
			t.Errorf("%v after the last sample %.4f is known, want %.4f", after, confidence, want)
		}
	}
}

// How far a server's speed may be off follows from how much its works scatter, and how many they
// were; one that turns slow is not taken for one that scatters for long.
func TestLearned_TheErrorIsThatOfItsScatter(t *testing.T) {
	x := PrefillFeatures(4096, 0)
	after := func(works int, factor func(i int) float64) float64 {
		l := NewLearned(testPrior, testAnchors, time.Minute)
		for i := range works {
			l.Observe(x, time.Duration(factor(i)*testPrior.Seconds(x)*float64(time.Second)), testNow)
		}
		return l.Belief(testNow).Error
	}
	steady := func(int) float64 { return 1 }
	scatters := func(i int) float64 { return 1 + 0.3*float64(1-2*(i%2)) }
	slows := func(i int) float64 { return 1 + float64(min(i/100, 1)) }
	for _, c := range []struct {
		name        string
		got         float64
		least, most float64
	}{
		{"of nothing", after(0, steady), 0, 0},
		{"of works that all took as long", after(50, steady), 0, 1e-6},
		{"of four that scatter by 30 %", after(4, scatters), 0.1, 0.16},
		{"of many", after(500, scatters), 0.04, 0.046}, // 0.3 sqrt(0.04 / 1.96): a memory of 25
		{"as the server turned twice as slow ten works ago", after(110, slows), 0.03, 0.09},
		{"fifty works ago", after(150, slows), 0, 0.03},
	} {
		if c.got < c.least || c.got > c.most {
			t.Errorf("%s: %.4f, want %v to %v", c.name, c.got, c.least, c.most)
		}
	}
}

// An engine that finishes many works in one step answers them together: the first took
// all the time, the others none, and what the step takes whatever is in it they took once. That
// must not make it look ever faster.
func TestLearned_WorksThatAreAnsweredTogetherCountTogether(t *testing.T) {
	for _, batch := range []int{1, 4, 16, 64} {
		l := NewLearned(testPrior, testAnchors, time.Minute)
		x := PrefillFeatures(2000, 0)
		all := 0.8 * (testPrior.Fixed() + float64(batch)*(testPrior.Seconds(x)-testPrior.Fixed()))
		each := 0.8 * testPrior.Seconds(x)
		now := testNow
		for i := range 640 {
			took := time.Duration(0)
			if i%batch == 0 {
				took = time.Duration(all * float64(time.Second))
			}
			now = now.Add(took)
			l.ObserveServed(x, took, now)
		}
		if got := l.Curve().Seconds(x) / each; got < 0.85 || got > 1.3 {
			t.Errorf("%d at once: believed %.2f of what they take", batch, got)
		}
	}
}

func TestLearned_AServerMuchFasterThanThePriorIsBelieved(t *testing.T) {
	l := NewLearned(testPrior, testAnchors, time.Minute)
	x := PrefillFeatures(2000, 0)
	for range 200 {
		l.ObserveServed(x, time.Duration(0.02*testPrior.Seconds(x)*float64(time.Second)), testNow)
	}
	if got := l.Curve().Seconds(x) / testPrior.Seconds(x); got > 0.05 {
		t.Errorf("fifty times as fast, and believed to take %.2f of the prior", got)
	}
}

// One that is avoided gives a sample now and then. When it has healed few of them are enough,
// but one that took long by chance says no more than it ever does.
func TestLearned_AfterASilenceGoodNewsCountForMore(t *testing.T) {
	x := PrefillFeatures(1000, 0)
	shown := func(factor float64, samples int) (*Learned, func(factor float64, after time.Duration) float64) {
		l, now := NewLearned(testPrior, testAnchors, time.Minute), testNow
		observe := func(factor float64, after time.Duration) float64 {
			now = now.Add(after)
			l.Observe(x, time.Duration(factor*testPrior.Seconds(x)*float64(time.Second)), now)
			return l.Curve().Seconds(x) / testPrior.Seconds(x)
		}
		for range samples {
			observe(factor, 100*time.Millisecond)
		}
		return l, observe
	}
	slow, observe := shown(3, 100)
	if got := observe(1, 100*time.Millisecond); got < 2.5 {
		t.Errorf("one good sample among many: believed %.2f times as slow", got)
	}
	if confidence := slow.Confidence(testNow.Add(time.Hour)); confidence > 0.01 {
		t.Errorf("after an hour it is known by %.2f", confidence)
	}
	for i, most := range []float64{2.1, 1.6, 1.4, 1.3, 1.25} {
		if got := observe(1, 6*time.Minute); got > most {
			t.Errorf("good sample %d after silences: believed %.2f times as slow, want at most %.2f", i+1, got, most)
		}
	}
	_, observe = shown(1, 100)
	if got := observe(3, 6*time.Minute); got > 1.15 {
		t.Errorf("a stall after a silence: believed %.2f times as slow", got)
	}
}

// Requests teach a curve, replicas report to it and choices read it at once: nothing that was
// shown is lost.
func TestLearned_IsSafeForConcurrentUse(t *testing.T) {
	anchors := []Features{PrefillFeatures(256, 0), PrefillFeatures(4096, 0)}
	l, now := NewLearned(Curve{0.0165, 0.015184, 0.00042099}, anchors, time.Minute), time.Now()
	x := PrefillFeatures(1000, 0)
	var wg sync.WaitGroup
	for _, each := range []func(){
		func() { l.Observe(x, 50*time.Millisecond, now) },
		func() { l.Observe(x, 40*time.Millisecond, now) },
		func() { l.ObserveServed(x, 60*time.Millisecond, now) },
		func() { l.Receive(&Report{}, Report{Works: 1, Observed: .05, Predicted: .03}, 0, now) },
		func() { l.Receive(nil, Report{Curve: Curve{0.02, 0.02, 0.0005}, Confidence: 1}, 0, now) },
		func() { l.Curve(); l.Confidence(now); l.Report(now) },
	} {
		wg.Go(func() {
			for range 200 {
				each()
			}
		})
	}
	wg.Wait()
	l.Observe(x, 50*time.Millisecond, now) // counts the last step served
	if got := l.Report(now).Works; got != 601 {
		t.Errorf("%d works are shown, want 601", got)
	}
	if got := l.Confidence(now); got != 1 {
		t.Errorf("confidence %v", got)
	}
}

// Equations have the same solution in whichever order they stand; those without a single one have
// none.
func TestSolve3(t *testing.T) {
	for _, x := range []struct {
		a    [3][3]float64
		b    [3]float64
		want Curve
	}{
		{[3][3]float64{{2, 1, -1}, {-3, -1, 2}, {-2, 1, 2}}, [3]float64{8, -11, -3}, Curve{2, 3, -1}},
		{[3][3]float64{{0, 1, 0}, {1, 0, 0}, {0, 0, 1}}, [3]float64{2, 3, 4}, Curve{3, 2, 4}},
		{[3][3]float64{{1, 2, 3}, {1, 2, 5}, {1, 4, 3}}, [3]float64{14, 20, 18}, Curve{1, 2, 3}},
		{[3][3]float64{{1e-9, 1, 0}, {1, 1, 1}, {0, 1e-9, 1}}, [3]float64{1, 3, 1}, Curve{1, 1, 1}},
	} {
		for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			var a [3][3]float64
			var b [3]float64
			for to, from := range order {
				a[to], b[to] = x.a[from], x.b[from]
			}
			got, ok := solve3(a, b)
			for i := range got {
				ok = ok && math.Abs(got[i]-x.want[i]) < 1e-7
			}
			if !ok {
				t.Errorf("%v %v: %v, want %v", a, b, got, x.want)
			}
		}
	}
	for _, a := range [][3][3]float64{{}, {{1, 2, 3}, {2, 4, 6}, {1, 1, 1}}, {{1, 0, 0}, {0, 1, 0}, {0, 0, 0}}} {
		if got, ok := solve3(a, [3]float64{1, 2, 3}); ok {
			t.Errorf("%v has the solution %v", a, got)
		}
	}
}

// The prior counts as one work in the error too, and what a server showed before a silence that
// good news end: figures by hand.
func TestLearned_TheErrorCountsThePriorAsOneWork(t *testing.T) {
	l := NewLearned(Curve{1, 0, 0}, []Features{{1, 0, 0}}, time.Minute)
	l.Observe(Features{1, 0, 0}, 2*time.Second, testNow)
	// Sums with the prior's at 0.96: 2.96 s observed, 1.96 s predicted; squares 4.9216, 2.9216, 1.9216.
	if got := l.Belief(testNow).Error; math.Abs(got-0.23402) > 1e-4 {
		t.Errorf("after a work of twice the time: %.5f", got)
	}
	l.Observe(Features{1, 0, 0}, 500*time.Millisecond, testNow.Add(time.Hour))
	// 1.9498 s observed, 1.96 s predicted; squares 2.3519, 1.8918, 1.9216.
	if got := l.Belief(testNow.Add(time.Hour)).Error; math.Abs(got-0.35888) > 1e-4 {
		t.Errorf("after good news: %.5f", got)
	}
}

// Works that are answered in one step wait for its end to be counted; a work alone, and a step of
// too many that took nothing, end it.
func TestLearned_WhatEndsAStep(t *testing.T) {
	x := Features{1, 0, 0}
	counted := func(l *Learned) uint64 { return l.Report(testNow).Works }
	l := NewLearned(Curve{1, 0, 0}, []Features{x}, time.Minute)
	l.ObserveServed(x, time.Second, testNow)
	if n := counted(l); n != 0 {
		t.Errorf("%d works are counted before the step's end", n)
	}
	l.Observe(x, time.Second, testNow)
	if n := counted(l); n != 2 {
		t.Errorf("%d works are counted of one in a step and one alone", n)
	}
	l = NewLearned(Curve{1, 0, 0}, []Features{x}, time.Minute)
	for range maxStep {
		l.ObserveServed(x, 0, testNow)
	}
	if n := counted(l); n != 0 {
		t.Errorf("%d are counted of as many as one step has", n)
	}
	l.ObserveServed(x, 0, testNow)
	if n := counted(l); n != maxStep {
		t.Errorf("%d are counted when one more comes", n)
	}
}

// Of a busy server too, good news after a silence count for more than what it showed before, and
// those without a silence do not.
func TestLearned_GoodNewsOfABusyServer(t *testing.T) {
	x := Features{1, 0, 0}
	for silence, believed := range map[time.Duration]bool{time.Second: false, time.Hour: true} {
		l := NewLearned(Curve{1, 0, 0}, []Features{x}, time.Minute)
		for range 20 {
			l.Observe(x, 10*time.Second, testNow)
		}
		slow := l.Curve().Seconds(x)
		after := testNow.Add(silence)
		l.ObserveServed(x, time.Second, after)
		l.ObserveServed(x, time.Second, after) // ends the step before
		if now := l.Curve().Seconds(x); (now < 0.7*slow) != believed {
			t.Errorf("after %v: %.2f s, before %.2f s", silence, now, slow)
		}
	}
}
