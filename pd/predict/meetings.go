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
	mu    sync.RWMutex // guards paths
	paths map[meetingPath]meeting
}

type meetingPath struct{ from, to string }

type meeting struct {
	met   bool
	at    time.Time
	until time.Time // where they have not met: nothing is to be tried before
}

// HaveMet reports whether a server has fetched KV from another one, the last time that it was to.
func (m *Meetings) HaveMet(from, to string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.paths[meetingPath{from, to}].met
}

// Pauses reports whether nothing is to be fetched now.
func (m *Meetings) Pauses(from, to string, now time.Time) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return now.Before(m.paths[meetingPath{from, to}].until)
}

// Begin reports whether the caller is to let two servers meet that have not: nobody else does so now.
func (m *Meetings) Begin(from, to string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := meetingPath{from, to}
	if before := m.paths[path]; before.met || now.Before(before.until) {
		return false
	}
	m.setLocked(path, meeting{at: now, until: now.Add(meetingPause)})
	return true
}

// Observe notes whether a server has fetched KV from another one.
func (m *Meetings) Observe(from, to string, fetched bool, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := meeting{met: fetched, at: now}
	if !fetched {
		seen.until = now.Add(meetingPause)
	}
	m.setLocked(meetingPath{from, to}, seen)
}

func (m *Meetings) setLocked(path meetingPath, seen meeting) {
	if _, known := m.paths[path]; !known {
		maps.DeleteFunc(m.paths, func(_ meetingPath, old meeting) bool { return seen.at.Sub(old.at) > meetingLife })
	}
	if m.paths == nil {
		m.paths = make(map[meetingPath]meeting)
	}
	m.paths[path] = seen
}
