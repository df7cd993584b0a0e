package predict

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// However far forecasts are off, nearly all first gaps meet the objective, and tokens are not held for much
// longer than that needs.
func TestFirstGap_MostMeetTheObjective(t *testing.T) {
	const objective, n = 100 * time.Millisecond, 20_000
	for _, off := range []float64{0.7, 1, 2} {
		r := rand.New(rand.NewPCG(7, 3))
		var g FirstGap
		missed, held, needed := 0, 0.0, 0.0
		for i := range 2 * n {
			forecast := time.Duration(50+r.IntN(200)) * time.Millisecond
			took := time.Duration(float64(forecast) * off * math.Exp(0.1*r.NormFloat64()))
			hold := min(g.Hold(forecast, objective), took)
			if i >= n {
				held, needed = held+hold.Seconds(), needed+max(0, took-objective).Seconds()
				if took-hold > objective {
					missed++
				}
			}
			g.Observe(took-hold, objective)
		}
		if share := float64(missed) / n; share > 0.02 || held > 1.5*needed+0.01*n {
			t.Errorf("forecasts off by %.1f: %.1f %% missed; held for %.0f ms in the mean where %.0f would do", off, 100*share, 1000*held/n, 1000*needed/n)
		}
	}
}

// What the objective leaves beside the rest of a gap is spared, less where gaps have been longer than forecast.
func TestFirstGap_SparesWhatTheObjectiveLeaves(t *testing.T) {
	const objective = 100 * time.Millisecond
	var g FirstGap
	for _, of := range []struct{ others, objective, want time.Duration }{
		{40 * time.Millisecond, objective, 48 * time.Millisecond}, {objective, objective, 0}, {2 * objective, objective, 0}, {40 * time.Millisecond, 0, 0},
	} {
		if got := g.Spare(of.others, of.objective); got != of.want {
			t.Errorf("%v of %v for others: spares %v, want %v", of.others, of.objective, got, of.want)
		}
	}
	for range 1000 { // shorter ones say nothing
		g.Observe(objective/2, objective)
	}
	if got := g.Spare(0, objective); got != 80*time.Millisecond {
		t.Errorf("where gaps are shorter than forecast it spares %v", got)
	}
	for range 100 {
		g.Observe(2*objective, objective)
	}
	if got := g.Spare(0, objective); got > 40*time.Millisecond {
		t.Errorf("where gaps are longer than forecast it spares %v", got)
	}
}

// Without samples forecasts are believed: a token is held until decode's is due within the objective.
func TestFirstGap_BelievesForecastsAtFirst(t *testing.T) {
	var g FirstGap
	for _, of := range []struct{ forecast, objective, want time.Duration }{{80, 100, 0}, {100, 100, 0}, {250, 100, 150}} {
		if got := g.Hold(of.forecast, of.objective); got != of.want {
			t.Errorf("a gap of %d beyond an objective of %d: held for %d, want %d", of.forecast, of.objective, got, of.want)
		}
	}
}
