package pd

import (
	"cmp"
	"sync"
	"time"
)

// promises compares when first tokens came with when they were predicted to, so that a
// deadline is promised only where it will be kept. What is predicted is right on the
// whole, and half of those who are promised the last moment would miss it: the work for
// them is lost, and that is most of the work under overload. The zero value believes
// predictions as they are.
type promises struct {
	share float64 // of promises that are to be kept; 0 is promised
	least float64 // the ratio is never less, and begins there; 0 is leastRatio, and it begins at 1

	mu    sync.Mutex // guards ratio
	ratio float64    // took/predicted that most stay under; 0 is unknown, as 1
}

const (
	promised    = 0.9  // share of first tokens that are to come before what they were promised
	promiseStep = 0.05 // of the ratio, at a sample that took longer; less at those that did not, in proportion
	leastRatio  = 0.5
	mostRatio   = 4.0
	trifle      = 50 * time.Millisecond // added to both: what is soon need not be exact
)

// came notes a first token.
func (p *promises) came(predicted, took time.Duration) {
	sample := (took + trifle).Seconds() / (max(predicted, 0) + trifle).Seconds()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(sample > cmp.Or(p.ratio, p.least, 1))
}

// broke notes one that was promised in time and given up.
func (p *promises) broke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(true)
}

func (p *promises) noteLocked(longer bool) {
	share := cmp.Or(p.share, promised)
	p.ratio = cmp.Or(p.ratio, p.least, 1)
	if longer {
		p.ratio *= 1 + promiseStep
	} else {
		p.ratio *= 1 - promiseStep*(1-share)/share
	}
	p.ratio = min(max(p.ratio, cmp.Or(p.least, leastRatio)), mostRatio)
}

// by is when a first token that is predicted will be there with some certainty.
func (p *promises) by(predicted time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(float64(predicted) * cmp.Or(p.ratio, p.least, 1))
}
