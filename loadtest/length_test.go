package loadtest

import (
	"math"
	"testing"
)

func TestParseLength(t *testing.T) {
	for _, text := range []string{"1", "512", "uniform:10,10", "uniform:100,900", "lognormal:1200,0.8", "lognormal:12.5,0"} {
		l, err := ParseLength(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if l.String() != text {
			t.Errorf("%s is written back as %s", text, l)
		}
	}
	for _, text := range []string{
		"", "0", "-3", "1.5", "x", "fixed:1,2", "uniform:9,1", "uniform:5", "uniform:1.5,3", "uniform:0,3",
		"lognormal:100", "lognormal:100,-1", "lognormal:NaN,1", "normal:5,1", "99999999", "uniform:1,2,3",
	} {
		if l, err := ParseLength(text); err == nil {
			t.Errorf("%q was read as %v", text, l)
		}
	}
}

func TestDraw_FollowsTheDistribution(t *testing.T) {
	const n = 200_000
	for _, c := range []struct {
		text                string
		mean, low, high, in float64 // in: relative tolerance of the mean
	}{
		{"512", 512, 512, 512, 0},
		{"uniform:100,900", 500, 100, 900, 0.01},
		{"lognormal:1200,0.8", 1200, 1, maxTokens, 0.01},
	} {
		l, err := ParseLength(c.text)
		if err != nil {
			t.Fatal(err)
		}
		rng := newRand(7, lengthStream)
		var sum float64
		low, high := math.Inf(1), math.Inf(-1)
		for range n {
			v := float64(l.draw(rng))
			sum += v
			low, high = min(low, v), max(high, v)
		}
		if low < c.low || high > c.high {
			t.Errorf("%s drew %v to %v, want %v to %v", c.text, low, high, c.low, c.high)
		}
		if mean := sum / n; math.Abs(mean-c.mean) > c.in*c.mean {
			t.Errorf("%s has mean %v, want %v", c.text, mean, c.mean)
		}
	}
}
