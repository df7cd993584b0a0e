package picker

import (
	"sync"
	"time"
)

// modeSilence is the time between two lines of the log on filters that show no whole bodies.
const modeSilence = time.Minute

// wrongModes are the requests of filters that show no whole bodies. Each request of such a filter fails, so that the log
// has a line a minute.
type wrongModes struct {
	mu      sync.Mutex // guards the rest
	logged  time.Time  // zero: it was not
	refused int        // requests since it was logged
}

// add counts a refused request, and returns how many there were since the last line of the log if the next one is due,
// else 0.
func (m *wrongModes) add(now time.Time) (refused int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused++
	if !m.logged.IsZero() && now.Sub(m.logged) < modeSilence {
		return 0
	}
	refused = m.refused
	m.logged, m.refused = now, 0
	return refused
}
