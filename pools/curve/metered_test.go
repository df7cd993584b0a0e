package curve

import (
	"math"
	"testing"
	"time"
)

// What an engine's clock says of its requests bounds the curve where all that ended were our works; where others'
// were among them, or it began anew, it says nothing.
func TestLearned_ReadsTheEnginesClock(t *testing.T) {
	x := PrefillFeatures(4000, 0)
	prior := testPrior.Seconds(x)
	for name, c := range map[string]struct {
		ours, requests int     // works of a round, and requests of the engine for each
		others         int     // requests of others in it
		share          float64 // of what was believed of a work, that each request takes
		restarts       bool    // the engine does, in each round
		want           float64 // share of what the prior believes of a work
	}{
		"ours are faster":                {ours: 10, requests: 1, share: 0.1, want: 0.1},
		"few in a round":                 {ours: 3, requests: 1, share: 0.1, want: 0.1},
		"several requests each":          {ours: 10, requests: 4, share: 0.1, want: 0.4},
		"slower than believed: no bound": {ours: 10, requests: 1, share: 3, want: 1},
		"half are others'":               {ours: 10, requests: 1, others: 10, share: 0.1, want: 1},
		"only others'":                   {others: 10, share: 0.1, want: 1},
		"the engine begins anew":         {ours: 10, requests: 1, share: 0.1, restarts: true, want: 1},
	} {
		l, now := NewLearned(testPrior, testAnchors, time.Minute), testNow
		requests, seconds := 1000.0, 50.0 // before we came
		l.ReadMeter(requests, seconds, now)
		for range 40 {
			for range c.ours {
				l.EndMetered(x, c.requests)
			}
			if c.restarts {
				requests, seconds = 0, 0
			}
			ended := float64(c.ours*c.requests + c.others)
			requests, seconds, now = requests+ended, seconds+ended*c.share*prior, now.Add(time.Second)
			if c.restarts {
				requests, seconds = 5, 0.01
			}
			l.ReadMeter(requests, seconds, now)
		}
		if got := l.Curve().Seconds(x) / prior; math.Abs(got-c.want) > 0.02*c.want {
			t.Errorf("%s: it is believed to take %.3f of the prior, want %v", name, got, c.want)
		}
	}
}
