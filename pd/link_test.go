package pd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func at(id, rack string) *Candidate { return &Candidate{ID: id, Place: Place{Rack: rack}} }

// seconds is what a link is believed to take for a gigabyte.
func seconds(l *Links, p, d *Candidate, now time.Time) float64 {
	v := l.View(now)
	factor, _ := v.factor(p.ID, d.ID)
	return factor * v.classes[DistanceOf(&p.Place, &d.Place)].Time(1e9).Seconds()
}

// transfers teaches n transfers at a bandwidth, with noise.
func transfers(l *Links, p, d *Candidate, bytesPerSecond float64, n int, now time.Time) {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for range n {
		bytes := math.Exp(17 + 5*r.Float64())
		took := 0.0005 + bytes/bytesPerSecond*math.Exp(0.1*r.NormFloat64())
		l.Observe(p, d, bytes, time.Duration(took*float64(time.Second)), now)
	}
}

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got/want-1) > tolerance {
		t.Errorf("%s: a gigabyte takes %.3f s, want %.3f", what, got, want)
	}
}

func TestLinks_AClassIsLearnedFromAllItsPairs(t *testing.T) {
	l := NewLinks(DefaultLinks())
	within(t, "prior", seconds(l, at("p", "r1"), at("d", "r1"), testTime), 1/50.0, 0.05)
	for i := range 10 {
		p, d := at(fmt.Sprint("p", i), "r1"), at(fmt.Sprint("d", i), "r1")
		transfers(l, p, d, 5e9, 4, testTime) // the rack is ten times slower than assumed
	}
	within(t, "a pair never seen", seconds(l, at("new", "r1"), at("other", "r1"), testTime), 1/5.0, 0.4)
	within(t, "another class", seconds(l, at("new", "r1"), at("other", "r2"), testTime), 1/12.5, 0.05)
}

func TestLinks_ASickPairIsSeenWithinFiftyAndTriedAgainWhenItMayHaveHealed(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, sick, well := at("p", "r1"), at("sick", "r1"), at("well", "r1")
	transfers(l, p, well, 50e9, 30, testTime)
	transfers(l, p, sick, 50e9, 30, testTime)
	within(t, "both well", seconds(l, p, sick, testTime), 1/50.0, 0.3)

	transfers(l, p, sick, 5e9, 25, testTime) // a silent fallback to TCP
	if got := seconds(l, p, sick, testTime); got < 5/50.0 {
		t.Errorf("25 slow transfers later a gigabyte is believed to take %.3f s", got)
	}
	within(t, "the other pair", seconds(l, p, well, testTime), 1/50.0, 0.3)
	if got := seconds(l, p, sick, testTime.Add(10*pairFade)); got > 1.5/50.0 {
		t.Errorf("long without a sample it is still believed to take %.3f s", got)
	}
	transfers(l, p, sick, 50e9, 25, testTime.Add(time.Minute))
	within(t, "healed", seconds(l, p, sick, testTime.Add(time.Minute)), 1/50.0, 0.4)
}

func TestLinks_AFailedTransferCountsAtOnceAndOnlyForItsPair(t *testing.T) {
	l := NewLinks(DefaultLinks())
	p, d, other := at("p", "r1"), at("d", "r1"), at("other", "r1")
	before := seconds(l, p, d, testTime)
	l.Fault("p", "d", testTime)
	if got := seconds(l, p, d, testTime); got < 5*before {
		t.Errorf("after a fault: %.3f s, before %.3f s", got, before)
	}
	within(t, "another pair", seconds(l, p, other, testTime), before, 0.01)
	for range 100 {
		l.Fault("p", "d", testTime)
	}
	if got := seconds(l, p, d, testTime); got > 100*before {
		t.Errorf("many faults have no end: %.3f s", got)
	}
}

func TestLinks_MemoryIsBounded(t *testing.T) {
	l := NewLinks(DefaultLinks())
	for i := range maxPairs + 1000 {
		l.learn(pairID{fmt.Sprint("p", i), "d"}, 0, testTime)
	}
	if n := len(l.pairs); n > maxPairs {
		t.Errorf("%d pairs", n)
	}
}
