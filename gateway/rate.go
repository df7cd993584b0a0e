package gateway

import (
	"sync"
	"time"
)

// rateSeconds is how far back a rate looks, in whole seconds.
const rateSeconds = 10

// rate counts events per second over the last ten whole seconds.
type rate struct {
	mu      sync.Mutex // guards the rest
	seconds [rateSeconds + 1]int
	began   time.Time // when it was first asked: seconds count from there, whatever the clock is set to
	latest  int64     // the newest second counted
}

// add counts one event.
func (r *rate) add(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advanceLocked(now)
	r.seconds[r.latest%int64(len(r.seconds))]++
}

// perSecond is the mean over the ten seconds before the present one, which is not
// over yet.
func (r *rate) perSecond(now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.advanceLocked(now)
	sum := 0
	for i, n := range r.seconds {
		if int64(i) != r.latest%int64(len(r.seconds)) {
			sum += n
		}
	}
	return float64(sum) / rateSeconds
}

// advanceLocked forgets the seconds that are too long ago.
func (r *rate) advanceLocked(now time.Time) {
	if r.began.IsZero() {
		r.began = now
	}
	second := int64(now.Sub(r.began) / time.Second)
	for s := max(r.latest+1, second-rateSeconds); s <= second; s++ {
		r.seconds[s%int64(len(r.seconds))] = 0
	}
	r.latest = max(r.latest, second)
}
