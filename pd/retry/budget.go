package retry

import (
	"sync"
	"time"
)

// Budget bounds retries, so that a failing pool is not buried under them: in any
// ten seconds at most Ratio of the requests, and Floor more. While several tenants have requests none may take what
// the others need: beyond Ratio of its own requests, and one, a tenant takes no more of the budget than it leaves free.
type Budget struct {
	ratio float64
	floor int

	mu        sync.Mutex // guards the rest
	began     time.Time  // when it was first asked: seconds count from there, whatever the clock is set to
	second    int64      // the second that is counted now
	all       window
	ofTenants map[string]*window // of those that had requests or retries lately
}

// window is what was counted in each of the last seconds, and in all of them.
type window struct {
	slots [windowSeconds]counts
	sum   counts
}

const windowSeconds = 10

type counts struct{ requests, retries, engineFaults int }

func (c *counts) add(other counts, times int) {
	c.requests += times * other.requests
	c.retries += times * other.retries
	c.engineFaults += times * other.engineFaults
}

// add counts in a second, which has not passed yet.
func (w *window) add(second int64, c counts, times int) {
	w.slots[second%windowSeconds].add(c, times)
	w.sum.add(c, times)
}

// begin begins to count a second.
func (w *window) begin(second int64) {
	passed := &w.slots[second%windowSeconds]
	w.sum.add(*passed, -1)
	*passed = counts{}
}

// NewBudget returns a budget of ratio (0..1) retries per request and floor
// retries per ten seconds whatever the traffic.
func NewBudget(ratio float64, floor int) *Budget {
	return &Budget{ratio: ratio, floor: floor, ofTenants: make(map[string]*window)}
}

// CountRequest counts a request of a tenant.
func (b *Budget) CountRequest(tenant string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countLocked(tenant, now, counts{requests: 1})
}

// Taken is a retry that was taken out of a budget; its zero value is none.
type Taken struct {
	second  int64
	tenant  string
	counted counts
}

// TakeRetry takes one retry for a request of a tenant, false if there is none left for it. The request may be to blame
// itself for what an engine says of its own failure (engineFault), which each engine would say: such retries take no more
// than half of the budget, so that the other half is there when servers die.
func (b *Budget) TakeRetry(tenant string, engineFault bool, now time.Time) (Taken, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advanceLocked(now)
	c := counts{retries: 1}
	if engineFault {
		c.engineFaults = 1
	}
	most := b.ratio*float64(b.all.sum.requests) + float64(b.floor)
	free := most - float64(b.all.sum.retries) - 1
	if free < 0 || engineFault && float64(b.all.sum.engineFaults) >= most/2 || !b.isFairLocked(tenant, free) {
		return Taken{}, false
	}
	b.countLocked(tenant, now, c)
	return Taken{b.second, tenant, c}, true
}

// isFairLocked reports whether a tenant may take one retry more, which leaves so many.
func (b *Budget) isFairLocked(tenant string, free float64) bool {
	own := b.ofTenants[tenant]
	if own == nil || own.sum.retries == 0 || len(b.ofTenants) < 2 {
		return true
	}
	return float64(own.sum.retries+1) <= max(b.ratio*float64(own.sum.requests), free)
}

// GiveBack gives back a retry that was not made. One that is older than the budget reckons is no part of it any more.
func (b *Budget) GiveBack(t Taken) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if own := b.ofTenants[t.tenant]; own != nil && b.second-t.second < windowSeconds {
		b.all.add(t.second, t.counted, -1)
		own.add(t.second, t.counted, -1)
	}
}

func (b *Budget) countLocked(tenant string, now time.Time, c counts) {
	b.advanceLocked(now)
	own := b.ofTenants[tenant]
	if own == nil {
		own = new(window)
		b.ofTenants[tenant] = own
	}
	own.add(b.second, c, 1)
	b.all.add(b.second, c, 1)
}

// advanceLocked lets the seconds pass since the last call, and forgets what is older than the window, and tenants
// of which nothing is younger.
func (b *Budget) advanceLocked(now time.Time) {
	if b.began.IsZero() {
		b.began = now
	}
	second := int64(now.Sub(b.began) / time.Second)
	for b.second < second {
		b.second = max(b.second+1, second-windowSeconds+1)
		b.all.begin(b.second)
		for tenant, own := range b.ofTenants {
			if own.begin(b.second); own.sum == (counts{}) {
				delete(b.ofTenants, tenant)
			}
		}
	}
}
