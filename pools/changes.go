package pools

import (
	"sync"
	"sync/atomic"
)

// changes wakes the goroutines that wait for something about the fleet to change: work that
// ended, a server that came or went, a report of another replica. A burst wakes them once.
type changes struct {
	count   atomic.Uint64 // of notifications
	mu      sync.Mutex    // guards waiting
	waiting []chan struct{}
}

// Changes returns a channel that is notified when more may be possible than before: work has
// ended, a server came up, other replicas' work is less. stop ends it.
func (f *Fleet) Changes() (changed <-chan struct{}, stop func()) { return f.changed.watch() }

// NotifyChange reports that more may be possible than before.
func (f *Fleet) NotifyChange() { f.changed.notify() }

// StateChanges returns a channel that is notified when the State of a server has changed, or
// what it serves, or the fleet has, and when a server was probed for the first time. stop ends it.
func (f *Fleet) StateChanges() (changed <-chan struct{}, stop func()) { return f.states.watch() }

func (c *changes) watch() (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = append(c.waiting, ch)
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, other := range c.waiting {
			if other == ch {
				c.waiting = append(c.waiting[:i:i], c.waiting[i+1:]...)
			}
		}
	}
}

func (c *changes) notify() {
	if c == nil {
		return
	}
	c.count.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.waiting {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
