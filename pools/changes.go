package pools

import (
	"slices"
	"sync"
	"sync/atomic"
)

// changes wakes the goroutines that wait for something about the fleet to change: work that
// ended, a server that came or went, a report of another replica. A burst wakes them once.
type changes struct {
	count   atomic.Uint64                   // of notifications
	waiting atomic.Pointer[[]chan struct{}] // of a list that nobody changes: a request notifies some seven times
	mu      sync.Mutex                      // of who replaces it
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
	c.replace(func(waiting []chan struct{}) []chan struct{} { return append(waiting, ch) })
	return ch, func() {
		c.replace(func(waiting []chan struct{}) []chan struct{} {
			return slices.DeleteFunc(waiting, func(other chan struct{}) bool { return other == ch })
		})
	}
}

// replace replaces the list by what change makes of a copy.
func (c *changes) replace(change func(copied []chan struct{}) []chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var waiting []chan struct{}
	if old := c.waiting.Load(); old != nil {
		waiting = slices.Clone(*old)
	}
	waiting = change(waiting)
	c.waiting.Store(&waiting)
}

func (c *changes) notify() {
	if c == nil {
		return
	}
	c.count.Add(1)
	waiting := c.waiting.Load()
	if waiting == nil {
		return
	}
	for _, ch := range *waiting {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
