package pd

import (
	"cmp"
	"github.com/tandem-gateway/tandem/pd/cost"
	"sync"
	"time"
)

// firstTokens are the promises of first tokens, of two kinds. A broken promise costs the
// work for it. Where that had to be taken from others who wait behind it, nearly all are to
// be kept: to refuse one more costs nothing there, since the server is busy all the same.
// The zero value believes predictions as they are.
type firstTokens struct {
	soon   promises // of those that are served as they come, or nearly so
	queued promises // of those that wait longer for the work ahead of them than for their own
	trials trials   // of what is predicted to be late
}

const (
	soonKept   = 0.9 // share of first tokens that are to come before what they were promised
	queuedKept = 0.99
)

// waitsLongest reports whether most of the time to a first token is the work ahead of it.
func waitsLongest(t *cost.Terms) bool { return t.Queue > t.TTFT()/2 }

// arrivals notes a first token.
func (f *firstTokens) came(t *cost.Terms, took time.Duration) {
	if waitsLongest(t) {
		f.queued.came(t.TTFT(), took, queuedKept)
		return
	}
	f.soon.came(t.TTFT(), took, soonKept)
}

// by is when the first token of a choice will be there with some certainty.
func (f *firstTokens) by(t *cost.Terms) time.Duration {
	if waitsLongest(t) {
		return f.queued.by(t.TTFT())
	}
	return f.soon.by(t.TTFT())
}

// promises compares when something came with when it was predicted to, so that a deadline
// is promised only where it will be kept. What is predicted is right on the whole, and half
// of those who are promised the last moment would miss it: the work for them is lost, and
// that is most of the work under overload. The zero value believes predictions as they are.
type promises struct {
	least float64 // the ratio is never less, and begins there; 0 is leastRatio, and it begins at 1

	mu    sync.Mutex // guards ratio
	ratio float64    // took/predicted that most stay under; 0 is unknown, as 1
}

const (
	promiseStep = 0.05 // of the ratio, at a sample that took longer; less at those that did not, in proportion
	leastRatio  = 0.5
	mostRatio   = 4.0
	trifle      = 50 * time.Millisecond // added to both: what is soon need not be exact
)

// arrivals notes how long something took, of which a share is to be kept.
func (p *promises) came(predicted, took time.Duration, share float64) {
	sample := (took + trifle).Seconds() / (max(predicted, 0) + trifle).Seconds()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(sample > cmp.Or(p.ratio, p.least, 1), share)
}

// broke notes one that was promised in time and given up.
func (p *promises) broke(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noteLocked(true, share)
}

func (p *promises) noteLocked(longer bool, share float64) {
	p.ratio = cmp.Or(p.ratio, p.least, 1)
	if longer {
		p.ratio *= 1 + promiseStep
	} else {
		p.ratio *= 1 - promiseStep*(1-share)/share
	}
	p.ratio = min(max(p.ratio, cmp.Or(p.least, leastRatio)), mostRatio)
}

// by is when what is predicted will be there with some certainty.
func (p *promises) by(predicted time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(float64(predicted) * cmp.Or(p.ratio, p.least, 1))
}
