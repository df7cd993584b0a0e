package predict

import (
	"cmp"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/cost"
)

// TTFTMargin is how far predicted times to first tokens are off, for two kinds of requests. A
// deadline that is promised and missed costs the work for it. Where that had to be taken from
// others that wait behind it, nearly all are to be met: to refuse one more costs nothing there,
// since the server is busy all the same. The zero value believes predictions as they are.
type TTFTMargin struct {
	Prompt Margin // of requests that are served as they come, or nearly so
	Queued Margin // of those that wait longer for the work ahead of them than for their own
}

const (
	promptShare = 0.9 // share of first tokens that are to come before they were said to
	queuedShare = 0.99
)

// isQueued reports whether most of the time to a first token is the work ahead of it.
func isQueued(t *cost.Terms) bool { return t.Queue > t.TTFT()/2 }

// Observe notes a first token.
func (m *TTFTMargin) Observe(t *cost.Terms, took time.Duration) {
	if isQueued(t) {
		m.Queued.Observe(t.TTFT(), took, queuedShare)
		return
	}
	m.Prompt.Observe(t.TTFT(), took, promptShare)
}

// Bound is when the first token of a choice will be there with some certainty.
func (m *TTFTMargin) Bound(t *cost.Terms) time.Duration {
	if isQueued(t) {
		return m.Queued.Bound(t.TTFT())
	}
	return m.Prompt.Bound(t.TTFT())
}

// Margin compares when something came with when it was predicted to, so that a deadline
// is promised only where it will be met. What is predicted is right on the whole, and half
// of those that are promised the last moment would miss it: the work for them is lost, and
// that is most of the work under overload. The zero value believes predictions as they are.
// Safe for concurrent use.
type Margin struct {
	Least float64 // the ratio is never less, and begins there; 0 is leastRatio, and it begins at 1

	mu    sync.Mutex // guards ratio
	ratio float64    // took/predicted that most stay under; 0 is unknown, as 1
}

const (
	ratioStep  = 0.05 // of the ratio, at a sample that took longer; less at those that did not, in proportion
	leastRatio = 0.5
	mostRatio  = 4.0
	tolerance  = 50 * time.Millisecond // added to both: what is soon need not be exact
)

// Observe notes how long something took, of which a share is to come within its bound.
func (m *Margin) Observe(predicted, took time.Duration, share float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stepLocked(m.isLongerLocked(predicted, took), share)
}

// ObserveAtLeast notes one that has taken so long and is not there: it says nothing where most are expected to take longer.
func (m *Margin) ObserveAtLeast(predicted, took time.Duration, share float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isLongerLocked(predicted, took) {
		m.stepLocked(true, share)
	}
}

// isLongerLocked reports whether something took longer than most are expected to.
func (m *Margin) isLongerLocked(predicted, took time.Duration) bool {
	return (took+tolerance).Seconds()/(max(predicted, 0)+tolerance).Seconds() > cmp.Or(m.ratio, m.Least, 1)
}

// ObserveMiss notes one that was promised in time and given up.
func (m *Margin) ObserveMiss(share float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stepLocked(true, share)
}

// ObserveKept notes one that came when it was promised.
func (m *Margin) ObserveKept(share float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stepLocked(false, share)
}

func (m *Margin) stepLocked(longer bool, share float64) {
	m.ratio = cmp.Or(m.ratio, m.Least, 1)
	if longer {
		m.ratio *= 1 + ratioStep
	} else {
		m.ratio *= 1 - ratioStep*(1-share)/share
	}
	m.ratio = min(max(m.ratio, cmp.Or(m.Least, leastRatio)), mostRatio)
}

// Within is the longest prediction whose Bound is within a time, where things take no less than predicted.
func (m *Margin) Within(bound time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(float64(bound) / max(1, cmp.Or(m.ratio, m.Least, 1)))
}

// Bound is when what is predicted will be there with some certainty.
func (m *Margin) Bound(predicted time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(float64(predicted) * cmp.Or(m.ratio, m.Least, 1))
}
