package predict

import (
	"maps"
	"sync"
	"time"
)

const (
	// meetingPause is for how long a server is not asked for KV by another one to which it gave none, or which is about to
	// meet it.
	meetingPause = 30 * time.Second
	// meetingLife is how long after its last use a meeting is remembered.
	meetingLife = time.Hour
)

// Meetings is which servers have fetched KV from which. Engines that meet for the first time exchange what they are to know
// of each other's memory, for seconds (vLLM's NIXL: 0.2 to 11 s), and no request is to wait for that. The zero value knows of
// none. Safe for concurrent use.
type Meetings struct {
	mu   sync.RWMutex // guards seen
	seen map[Meeting]meetingState
}

// Meeting is two servers, of which the one reads KV of the other, in one life of each.
type Meeting struct {
	From, To       string // IDs
	FromLife, Life uint64 // incarnations
}

type meetingState struct {
	met   bool
	at    time.Time
	until time.Time // where they have not met: nothing is to be tried before
}

// HaveMet reports whether a server has fetched KV from another one, the last time that it was to.
func (m *Meetings) HaveMet(who Meeting) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.seen[who].met
}

// Begin reports whether the caller is to let two servers meet that have not: nobody else does so now.
func (m *Meetings) Begin(who Meeting, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before := m.seen[who]; before.met || now.Before(before.until) {
		return false
	}
	m.setLocked(who, meetingState{at: now, until: now.Add(meetingPause)})
	return true
}

// Observe notes whether a server has fetched KV from another one: where not they are to meet anew, after a pause.
func (m *Meetings) Observe(who Meeting, fetched bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := meetingState{met: fetched, at: now}
	if !fetched {
		state.until = now.Add(meetingPause)
	}
	m.setLocked(who, state)
}

func (m *Meetings) setLocked(who Meeting, state meetingState) {
	if _, known := m.seen[who]; !known {
		maps.DeleteFunc(m.seen, func(_ Meeting, old meetingState) bool { return state.at.Sub(old.at) > meetingLife })
	}
	if m.seen == nil {
		m.seen = make(map[Meeting]meetingState)
	}
	m.seen[who] = state
}
