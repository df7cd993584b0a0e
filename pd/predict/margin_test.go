package predict

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// Whatever the predictions are off by, most of what is promised is kept, and little is
// promised late for nothing.
func TestMargin_MostStayWithin(t *testing.T) {
	for _, off := range []float64{0.7, 1, 2} {
		r := rand.New(rand.NewPCG(7, 1))
		var p Margin
		kept, sum := 0, 0.0
		const n = 2000
		for i := range 2 * n {
			predicted := time.Duration(500+r.IntN(2000)) * time.Millisecond
			took := time.Duration(float64(predicted) * off * math.Exp(0.3*r.NormFloat64()))
			if i >= n {
				if took <= p.Bound(predicted) {
					kept++
				}
				sum += p.Bound(predicted).Seconds() / (predicted.Seconds() * off)
			}
			p.Observe(predicted, took, promptShare)
		}
		if share, beyond := float64(kept)/n, sum/n; share < 0.83 || share > 0.96 || beyond > 1.8 {
			t.Errorf("predictions off by %.1f: %.0f %% kept, promised %.2f of what they took", off, 100*share, beyond)
		}
	}
	var fresh Margin
	if got := fresh.Bound(time.Second); got != time.Second {
		t.Errorf("without samples %v", got)
	}
}

// Behind a long queue nearly all is kept, whatever many that hardly wait prove to be.
func TestTTFTMargin_WhoWaitsLongestIsPromisedApart(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 2))
	queued := &cost.Terms{Queue: 1400 * time.Millisecond, Prefill: 100 * time.Millisecond}
	soon := &cost.Terms{Queue: 100 * time.Millisecond, Prefill: 100 * time.Millisecond}
	var f TTFTMargin
	kept := 0
	const n = 5000
	for i := range 2 * n {
		f.Observe(soon, time.Duration(0.7*float64(soon.TTFT())))
		took := time.Duration(float64(queued.TTFT()) * 1.05 * math.Exp(0.1*r.NormFloat64()))
		if i >= n && took <= f.Bound(queued) {
			kept++
		}
		f.Observe(queued, took)
	}
	if share := float64(kept) / n; share < 0.98 || f.Bound(soon) >= soon.TTFT() {
		t.Errorf("%.1f %% kept behind a queue; %v promised at once of %v", 100*share, f.Bound(soon), soon.TTFT())
	}
}

// One that was promised in time and given up makes promises later, as one that took longer does.
func TestMargin_AMissMakesPromisesLater(t *testing.T) {
	var missed, late Margin
	missed.ObserveMiss(promptShare)
	late.Observe(time.Second, time.Hour, promptShare)
	if got := missed.Bound(time.Second); got != late.Bound(time.Second) || got <= time.Second {
		t.Errorf("promised after a miss %v, after one that took longer %v", got, late.Bound(time.Second))
	}
}

// What is not there yet says no more than that it takes so long at the least, however many of it there are.
func TestMargin_WhatIsNotThereYetTakesAtLeastSoLong(t *testing.T) {
	var m Margin
	for range 100 {
		m.ObserveAtLeast(20*time.Second, 30*time.Second, 0.75)
	}
	if got := m.Bound(20 * time.Second); got < 30*time.Second || got > 32*time.Second {
		t.Errorf("30 s and more of 20 s: 20 s are reckoned with as %v", got)
	}
	before := m.Bound(time.Second)
	m.ObserveAtLeast(20*time.Second, 10*time.Second, 0.75)
	if after := m.Bound(time.Second); after != before {
		t.Errorf("10 s and more of 20 s: a second was reckoned with as %v, and then as %v", before, after)
	}
}
