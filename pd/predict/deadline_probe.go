package predict

import (
	"maps"
	"sync"
	"time"
)

// DeadlineProbes let a request through now and then that is predicted to miss its deadline.
// A request that is refused teaches nothing, so that once all are, by a fleet that was slow for
// a while or by a prior that is wrong, no prediction would ever be corrected. The zero value is
// ready. Safe for concurrent use.
type DeadlineProbes struct {
	mu   sync.Mutex           // guards last
	last map[string]time.Time // by base model: when one of its requests was last sent, answered or let through
}

// probeInterval is the time in which nothing was sent or answered after which one is let through.
const probeInterval = 10 * time.Second

// maxProbedModels is how many models are remembered before those of which nothing was observed
// for probeInterval are forgotten: models come and go.
const maxProbedModels = 256

// Observe notes that a model's request was sent to its servers, or answered.
func (p *DeadlineProbes) Observe(base string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeLocked(base, now)
}

// Take takes the probe of a model, false if none is due.
func (p *DeadlineProbes) Take(base string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.last[base]) < probeInterval {
		return false
	}
	p.observeLocked(base, now)
	return true
}

func (p *DeadlineProbes) observeLocked(base string, now time.Time) {
	if p.last == nil {
		p.last = make(map[string]time.Time)
	}
	if len(p.last) >= maxProbedModels { // one that is older is as one that is not there
		maps.DeleteFunc(p.last, func(_ string, last time.Time) bool { return now.Sub(last) >= probeInterval })
	}
	p.last[base] = now
}
