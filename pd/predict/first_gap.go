package predict

import "time"

// FirstGap says for how long prefill's token is held, so that the gap to decode's first one, for which the
// KV travels, meets the objective between tokens. How much longer than forecast such gaps may be it learns
// from how many of them missed the objective. The zero value believes forecasts as they are. Safe for
// concurrent use.
type FirstGap struct{ margin Margin }

// firstGapShare is the share of first gaps that are to meet their objective.
const firstGapShare = 0.99

// Hold returns the time from when decode is asked, of a gap that is forecast to take so long from then on.
// The token is given before if decode's is there.
func (g *FirstGap) Hold(forecast, objective time.Duration) time.Duration {
	return max(0, g.margin.Bound(forecast)-objective)
}

// spareShare is the part of what an objective spares that is counted on: where a cut is left out for it, more
// gaps are near the objective.
const spareShare = 0.8

// Spare returns how long a transfer may take without a token being held for it, where so much else lies between
// that token and decode's first one. Without an objective nothing is held, and none is spared.
func (g *FirstGap) Spare(others, objective time.Duration) time.Duration {
	return time.Duration(spareShare * float64(max(0, g.margin.Within(objective)-others)))
}

// Observe notes the gap behind a token that may have been held.
func (g *FirstGap) Observe(gap, objective time.Duration) {
	if gap > objective {
		g.margin.ObserveMiss(firstGapShare)
		return
	}
	g.margin.ObserveKept(firstGapShare)
}
