package gateway

import (
	"sync"
	"time"
)

// outageSilence is the time between two lines of the log on one model that no server serves.
const outageSilence = time.Minute

// outages are the models whose requests no server takes. While servers are down that is each
// request that comes, so that the log has a line a minute for each model, and metrics count them.
type outages struct {
	mu     sync.Mutex
	models map[string]*outage
}

// outage is that of a model.
type outage struct {
	logged  time.Time
	refused int // requests since
}

// add counts a refused request, and returns how many there were since the last line of the log if
// the next one is due, else 0.
func (o *outages) add(model string, now time.Time) (refused int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.models == nil {
		o.models = make(map[string]*outage)
	}
	m := o.models[model]
	if m == nil {
		m = &outage{logged: now.Add(-outageSilence)}
		o.models[model] = m
	}
	m.refused++
	if now.Sub(m.logged) < outageSilence {
		return 0
	}
	refused = m.refused
	m.logged, m.refused = now, 0
	return refused
}
