package demand

import (
	"math"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools/share"
)

// Lately is how fast the lengths of requests are forgotten: e-fold in the time for which
// demand is remembered.
const Lately = KeptBins * sizing.Bin

// Traffic is what was asked of one model lately, by class. What is older counts for less,
// so that the sums of several gateways can be added.
type Traffic [share.Classes]Lengths

// Lengths add up the requests of one class.
type Lengths struct {
	Requests float64 `json:"n"`
	Prompt   float64 `json:"p"` // tokens of all of them
	Computed float64 `json:"c"` // of these, not found in a cache
	Output   float64 `json:"o"` // tokens
}

func (l *Lengths) add(o Lengths) {
	l.Requests, l.Prompt = l.Requests+o.Requests, l.Prompt+o.Prompt
	l.Computed, l.Output = l.Computed+o.Computed, l.Output+o.Output
}

// times is all of it, so many times.
func (l Lengths) times(n float64) Lengths {
	return Lengths{n * l.Requests, n * l.Prompt, n * l.Computed, n * l.Output}
}

// remaining is what is left of a figure after a time.
func remaining(passed time.Duration) float64 {
	return math.Exp(-max(0, passed).Seconds() / Lately.Seconds())
}

// decay makes it older.
func (t *Traffic) decay(passed time.Duration) {
	keep := remaining(passed)
	for class := range t {
		t[class] = t[class].times(keep)
	}
}

func (t *Traffic) add(o *Traffic) {
	for class := range t {
		t[class].add(o[class])
	}
}

// LeastRequests is how few requests of a class count as none.
const LeastRequests = 0.01

// Rate is requests per second.
func (l *Lengths) Rate() float64 { return l.Requests / Lately.Seconds() }

// Mean is a mean request of a class, in tokens, false where there was none lately.
func (l *Lengths) Mean() (prompt, computed, output float64, ok bool) {
	if l.Requests < LeastRequests {
		return 0, 0, 0, false
	}
	prompt, output = max(1, l.Prompt/l.Requests), max(1, l.Output/l.Requests)
	return prompt, max(1, min(prompt, l.Computed/l.Requests)), output, true
}
