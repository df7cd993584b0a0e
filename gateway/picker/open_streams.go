package picker

import (
	"sync"
	"sync/atomic"
	"time"
)

// openStreams are the conversations that a drain may have to wait for.
type openStreams struct {
	mu   sync.Mutex // guards open
	open map[*progress]struct{}
}

// progress is how far a conversation is.
type progress struct {
	heard  atomic.Int64 // when its last message came, in nanoseconds since 1970
	picked atomic.Bool  // the request is whole
}

func (c *openStreams) add(p *progress) {
	p.heard.Store(time.Now().UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = make(map[*progress]struct{})
	}
	c.open[p] = struct{}{}
}

func (c *openStreams) remove(p *progress) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, p)
}

// last is when something was last heard that has an answer to lose: now while a request is whole and its answer under
// way, else when the last piece came of a request that is still coming.
func (c *openStreams) last(now time.Time) (last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.open {
		if p.picked.Load() {
			return now
		}
		if at := time.Unix(0, p.heard.Load()); at.After(last) {
			last = at
		}
	}
	return last
}
