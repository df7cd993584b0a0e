package retry

import (
	"sync"
	"time"
)

// Budget bounds retries, so that a failing pool is not buried under them: in any
// ten seconds at most Ratio of the requests, and Floor more.
type Budget struct {
	ratio float64
	floor int

	mu     sync.Mutex // guards the rest
	began  time.Time  // when it was first asked: seconds count from there, whatever the clock is set to
	second int64      // the second that the head slot counts
	slots  [10]struct{ requests, retries int }
}

// NewBudget returns a budget of ratio (0..1) retries per request and floor
// retries per ten seconds whatever the traffic.
func NewBudget(ratio float64, floor int) *Budget {
	return &Budget{ratio: ratio, floor: floor}
}

// CountRequest counts a request.
func (b *Budget) CountRequest(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slot(now).requests++
}

// Taken is a retry that was taken out of a budget; its zero value is none.
type Taken struct {
	second int64
	is     bool
}

// TakeRetry takes one retry, false if there is none left.
func (b *Budget) TakeRetry(now time.Time) (Taken, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	head := b.slot(now)
	requests, retries := 0, 0
	for _, s := range b.slots {
		requests += s.requests
		retries += s.retries
	}
	if float64(retries+1) > b.ratio*float64(requests)+float64(b.floor) {
		return Taken{}, false
	}
	head.retries++
	return Taken{b.second, true}, true
}

// GiveBack gives back a retry that was not made. One that is older than the budget reckons is no part of it any more.
func (b *Budget) GiveBack(t Taken) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := int64(len(b.slots)); t.is && b.second-t.second < n {
		b.slots[t.second%n].retries--
	}
}

// slot returns the slot of this second and clears those that have passed since
// the last call.
func (b *Budget) slot(now time.Time) *struct{ requests, retries int } {
	if b.began.IsZero() {
		b.began = now
	}
	second := int64(now.Sub(b.began) / time.Second)
	n := int64(len(b.slots))
	for b.second < second {
		b.second = max(b.second+1, second-n+1)
		b.slots[b.second%n] = struct{ requests, retries int }{}
	}
	return &b.slots[b.second%n]
}
