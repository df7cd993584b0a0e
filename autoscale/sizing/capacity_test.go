package sizing

import (
	"math"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// A step of n sequences of 4,000 tokens takes 10 ms + n x (1 ms + 0.4 ms).
func TestCapacity_SequencesByHand(t *testing.T) {
	usual := Capacity{Step: curve.Curve{0.010, 0.001, 0.1}, KVTokens: 1_000_000}
	with := func(change func(*Capacity)) Capacity {
		c := usual
		change(&c)
		return c
	}
	for _, of := range []struct {
		name  string
		c     Capacity
		itl   time.Duration
		want  float64 // sequences
		speed float64 // tokens per second
	}{
		{"of 50 ms 40 are left for sequences", usual, 50 * time.Millisecond, 0.040 / 0.0014, 0.040 / 0.0014 / 0.050},
		{"half of the time is more than half of the sequences less", usual, 25 * time.Millisecond, 0.015 / 0.0014, 0.015 / 0.0014 / 0.025},
		{"room for ten", with(func(c *Capacity) { c.KVTokens = 40_000 }), 50 * time.Millisecond, 10, 10 / 0.024},
		{"a batch of eight", with(func(c *Capacity) { c.MaxSequences = 8 }), 50 * time.Millisecond, 8, 8 / 0.0212},
		{"a step alone takes as long", usual, 10 * time.Millisecond, 0, 0},
		{"not even one", usual, 11 * time.Millisecond, 0, 0},
		{"steps as long whatever is in them: room alone counts", with(func(c *Capacity) { c.Step = curve.Curve{0.020, 0, 0} }), 50 * time.Millisecond, 250, 250 / 0.020},
		{"such a step within just the time that there is", with(func(c *Capacity) { c.Step = curve.Curve{0.0625, 0, 0} }), 62500 * time.Microsecond, 250, 250 / 0.0625},
		{"such a step that is too long", with(func(c *Capacity) { c.Step = curve.Curve{0.051, 0, 0} }), 50 * time.Millisecond, 0, 0},
	} {
		if got := of.c.Sequences(of.itl, 4000); math.Abs(got-of.want) > 1e-6 {
			t.Errorf("%s: %g sequences, want %g", of.name, got, of.want)
		}
		if got := of.c.DecodeSpeed(of.itl, 4000); math.Abs(got-of.speed) > 1e-6*of.speed {
			t.Errorf("%s: %g tokens a second, want %g", of.name, got, of.speed)
		}
	}
}
