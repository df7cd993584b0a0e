package history

import (
	"math"
	"time"
)

// Bins grow by a third of an octave each, from half a millisecond to seventeen minutes: a quantile
// is right to a tenth.
const (
	bins        = 64
	binsPerOct  = 3
	smallestBin = 500 * time.Microsecond
)

// histogram counts durations.
type histogram [bins]uint32

func (h *histogram) add(d time.Duration) {
	bin := 0
	if d > smallestBin {
		bin = min(bins-1, 1+int(binsPerOct*math.Log2(float64(d)/float64(smallestBin))))
	}
	h[bin]++
}

func (h *histogram) merge(other *histogram) {
	for i := range h {
		h[i] += other[i]
	}
}

// quantile is the duration that a share q of those counted do not exceed; 0 where none were.
func (h *histogram) quantile(q float64) time.Duration {
	total := 0.0
	for _, n := range h {
		total += float64(n)
	}
	if total == 0 {
		return 0
	}
	rank := q * total
	for i, n := range h {
		if n > 0 && rank <= float64(n) {
			return within(i, rank/float64(n))
		}
		rank -= float64(n)
	}
	return within(bins-1, 1)
}

// within is the duration at a share of a bin, taken to be filled evenly on the logarithmic scale.
func within(bin int, share float64) time.Duration {
	if bin == 0 {
		return time.Duration(share * float64(smallestBin))
	}
	return time.Duration(float64(smallestBin) * math.Exp2((float64(bin-1)+share)/binsPerOct))
}
