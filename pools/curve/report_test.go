package curve

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// samples lets a curve see n prompts that take so many times what the prior says.
func works(l *Learned, factor float64, n int, r *rand.Rand, now time.Time) {
	for range n {
		x := prompt(r)
		noise := math.Exp(0.1 * r.NormFloat64())
		l.Observe(x, time.Duration(factor*testPrior.Seconds(x)*noise*float64(time.Second)), now)
	}
}

func slower(factor float64) Curve {
	return Curve{factor * testPrior[0], factor * testPrior[1], factor * testPrior[2]}
}

// travelled is what arrives of what was shown.
func travelled(t *testing.T, s Report) (got Report) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &got); err != nil || !got.Valid() {
		t.Fatalf("%s: %v", text, err)
	}
	return got
}

// What one replica saw counts at the other as if it had been seen there, whatever that
// believed before, and however much of it comes at once.
func TestShown_NewsCountLikeOwnSamples(t *testing.T) {
	for _, at := range []int{1, 10, 50} {
		r := rand.New(rand.NewPCG(5, 1))
		a, b := NewLearned(testPrior, testAnchors, time.Minute), NewLearned(testPrior, testAnchors, time.Minute)
		works(a, 1, 100, r, testNow)
		works(b, 1, 100, r, testNow)
		before := travelled(t, a.Report(testNow))
		b.Receive(nil, before, 0, testNow) // nothing new: it knows as much
		if e := off(b.Curve(), testPrior); e > 0.15 {
			t.Fatalf("after the first word: off by %.0f %%", 100*e)
		}
		for range 50 / at {
			works(a, 2, at, r, testNow)
			s := travelled(t, a.Report(testNow))
			b.Receive(&before, s, time.Second, testNow)
			b.Receive(&s, s, time.Second, testNow) // said again it is no news
			before = s
		}
		if e := off(b.Curve(), slower(2)); e > 0.3 {
			t.Errorf("news of %d at once: off by %.0f %%", at, 100*e)
		}
	}
}

func TestShown_AReplicaThatKnowsNothingAdopts(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	a := NewLearned(testPrior, testAnchors, time.Minute)
	for range 100 {
		x := prompt(r)
		a.Observe(x, time.Duration(Curve{0.1, 0.06, 0.0001}.Seconds(x)*float64(time.Second)), testNow)
	}
	s := travelled(t, a.Report(testNow))
	b := NewLearned(testPrior, testAnchors, time.Minute)
	b.Receive(nil, s, time.Minute, testNow)
	if e := off(b.Curve(), a.Curve()); e > 0.25 {
		t.Errorf("adopted: off by %.0f %%: %v, there %v", 100*e, b.Curve(), a.Curve())
	}
	if confidence := b.Confidence(testNow); math.Abs(confidence-0.5) > 0.01 {
		t.Errorf("a minute old, and %.2f of it counts", confidence)
	}
	back := b.Report(testNow)
	if back.Works != 0 {
		t.Errorf("%d works of others told as own", back.Works)
	}
	a.Receive(nil, travelled(t, back), 0, testNow.Add(time.Minute))
	if confidence := a.Confidence(testNow.Add(time.Minute)); math.Abs(confidence-0.5) > 0.01 {
		t.Errorf("told back, and now %.2f of it counts", confidence)
	}
}

// A replica that starts anew counts from nothing again.
func TestShown_CountsMayStartAnew(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	b := NewLearned(testPrior, testAnchors, time.Minute)
	works(b, 1, 100, r, testNow)
	old := NewLearned(testPrior, testAnchors, time.Minute)
	works(old, 1, 500, r, testNow)
	before := old.Report(testNow)
	anew := NewLearned(testPrior, testAnchors, time.Minute)
	works(anew, 2, 50, r, testNow)
	b.Receive(&before, anew.Report(testNow), 0, testNow)
	if e := off(b.Curve(), slower(2)); e > 0.4 {
		t.Errorf("off by %.0f %%", 100*e)
	}
}

func TestShown_NonsenseIsNotValid(t *testing.T) {
	for _, text := range []string{`{"c":[-1,0,0],"k":1}`, `{"t":-5,"k":0}`, `{"c":[1e300,0,0],"k":1}`, `{"k":2}`, `{"s":1e13}`} {
		var s Report
		if err := json.Unmarshal([]byte(text), &s); err == nil && s.Valid() {
			t.Errorf("%s passes", text)
		}
	}
}

// Sums travel with nine digits: after weeks a work may be too small for them, and is counted
// all the same.
func TestShown_AWorkWithoutATimeSaysNothing(t *testing.T) {
	l := NewLearned(testPrior, testAnchors, time.Minute)
	works(l, 4, 100, rand.New(rand.NewPCG(6, 1)), testNow)
	before := Report{Works: 1e9, Observed: 4e8, Predicted: 1e8}
	after := before
	after.Works++
	l.Receive(&before, after, 0, testNow.Add(time.Minute))
	if e := off(l.Curve(), slower(4)); e > 0.15 {
		t.Errorf("off by %.0f %%", 100*e)
	}
}

// What other replicas tell comes while this one learns.
func TestShown_IsAdoptedWhileItLearns(t *testing.T) {
	l := NewLearned(testPrior, testAnchors, time.Minute)
	told := Report{Works: 9, Observed: 9, Predicted: 9, Curve: testPrior, Confidence: 1}
	var all sync.WaitGroup
	for _, do := range []func(time.Time){
		func(now time.Time) { l.Receive(nil, told, 0, now) }, func(now time.Time) { l.Observe(testAnchors[0], time.Second, now) }, func(now time.Time) { l.Belief(now) },
	} {
		all.Go(func() {
			for i := range 20 {
				do(testNow.Add(time.Duration(i) * time.Hour)) // so that what is told is news each time
			}
		})
	}
	all.Wait()
	if got := l.Belief(testNow.Add(20 * time.Hour)); got.Confidence <= 0 {
		t.Errorf("%+v", got)
	}
}
