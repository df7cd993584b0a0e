package order

import (
	"math"
	"time"
)

// longGaps is how many gaps between tokens were lately longer because a decode server computed a prompt
// beside them, of how many. The 99th percentile of gaps is that of the others until these are one in a
// hundred, whatever their length, and as long as a piece from there on. So what a prompt in pieces costs
// streams is discounted while they are few.
type longGaps struct {
	long, all float64       // gaps; both fade
	at        time.Duration // of the last look
}

const (
	gapsMemory = 300.0 // seconds
	// mostDiscount is the part of what streams count that is left out where long gaps are at most fewGaps of
	// all; at manyGaps nothing is.
	mostDiscount      = 0.55
	fewGaps, manyGaps = 0.006, 0.0085
)

// advance counts the gaps until now, as many as the streams of the last look make.
func (g *longGaps) advance(s *Servers) {
	elapsed := min((s.Now - g.at).Seconds(), gapsMemory)
	g.at = s.Now
	if elapsed <= 0 {
		return
	}
	rate := 0.0
	for d := range s.Decode {
		if state := &s.Decode[d]; state.Step > 0 {
			rate += float64(state.Running) / state.Step
		}
	}
	keep := math.Exp(-elapsed / gapsMemory)
	g.long, g.all = keep*g.long, keep*g.all+rate*elapsed
}

// discount is Servers.StreamDiscount.
func (g *longGaps) discount() float64 {
	share := g.long / max(g.all, 1)
	return mostDiscount * min(1, max(0, (manyGaps-share)/(manyGaps-fewGaps)))
}

// longGapsOn is how many gaps of streams a request's prefill lengthens on a pair.
func (t *Ticket) longGapsOn(pair Pair, s *Servers) float64 {
	if pair.Prefill != Aggregated {
		return 0
	}
	return at(t.LongGaps, pair.Decode) * float64(s.Decode[pair.Decode].Running)
}
