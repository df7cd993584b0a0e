package pd

import (
	"maps"
	"sync"
	"time"
)

// trials let a request through now and then that is predicted to miss its deadline. Who is
// refused teaches nothing, so that once all are, by a fleet that was slow for a while or by a
// prior that is wrong, no prediction would ever be put right. The zero value is ready.
type trials struct {
	mu   sync.Mutex           // guards last
	last map[string]time.Time // by base model: when one of its requests was last sent, answered or let through
}

// trialEvery is the time in which nothing was sent or answered after which one is let through.
const trialEvery = 10 * time.Second

// sweptTrials is how many models are remembered before those of which nothing was heard for
// trialEvery are forgotten: models come and go.
const sweptTrials = 256

// note says that a model's request was sent to its servers, or answered.
func (t *trials) note(base string, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLocked(base, now)
}

// due reports whether it is time for a trial, which the caller then makes.
func (t *trials) due(base string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.last[base]) < trialEvery {
		return false
	}
	t.noteLocked(base, now)
	return true
}

func (t *trials) noteLocked(base string, now time.Time) {
	if t.last == nil {
		t.last = make(map[string]time.Time)
	}
	if len(t.last) >= sweptTrials { // one that is older is as one that is not there
		maps.DeleteFunc(t.last, func(_ string, last time.Time) bool { return now.Sub(last) >= trialEvery })
	}
	t.last[base] = now
}
