package policy

import "math"

// gapHistogram counts gaps between tokens in bins a hundredth wide.
type gapHistogram struct {
	counts []int // bin i: from gapLeast * gapRatio^i
	total  int
	sum    float64
}

const (
	gapLeast = 1e-3 // seconds
	gapRatio = 1.01
)

func gapBin(seconds float64) int {
	return max(0, int(math.Log(seconds/gapLeast)/math.Log(gapRatio)))
}

// add counts n gaps.
func (h *gapHistogram) add(seconds float64, n int) {
	if n <= 0 {
		return
	}
	bin := gapBin(seconds)
	for len(h.counts) <= bin {
		h.counts = append(h.counts, 0)
	}
	h.counts[bin] += n
	h.total += n
	h.sum += seconds * float64(n)
}

// addRun counts n gaps for each of steps steps: the first of them takes seconds,
// each further one slope more.
func (h *gapHistogram) addRun(seconds, slope float64, steps, n int) {
	for steps > 0 {
		k := steps
		if slope > 0 {
			edge := gapLeast * math.Pow(gapRatio, float64(gapBin(seconds)+1))
			k = min(steps, 1+max(0, int((edge-seconds)/slope)))
		}
		mean := seconds + slope*float64(k-1)/2
		h.add(mean, k*n)
		seconds += slope * float64(k)
		steps -= k
	}
}

// merge adds another histogram.
func (h *gapHistogram) merge(o *gapHistogram) {
	for len(h.counts) < len(o.counts) {
		h.counts = append(h.counts, 0)
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.total += o.total
	h.sum += o.sum
}

func (h *gapHistogram) mean() float64 {
	if h.total == 0 {
		return 0
	}
	return h.sum / float64(h.total)
}

// quantile returns the middle of the bin that holds it.
func (h *gapHistogram) quantile(q float64) float64 {
	rank := int(math.Ceil(q * float64(h.total)))
	for i, n := range h.counts {
		if rank -= n; rank <= 0 {
			return gapLeast * math.Pow(gapRatio, float64(i)+0.5)
		}
	}
	return 0
}
