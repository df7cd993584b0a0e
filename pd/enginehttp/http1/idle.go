package http1

import (
	"sync"
	"time"
)

// idlePool holds connections that no exchange uses. One timer closes those that were idle for too long.
type idlePool struct {
	mu     sync.Mutex
	hosts  map[key][]*conn // the last one that became idle is the last; it is used first
	count  int
	timer  *time.Timer // nil: none is idle
	closed bool        // until the next request, none is kept
}

// take returns the connection that became idle last, nil if none did within the timeout.
func (p *idlePool) take(to key, timeout time.Duration) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	conns := p.hosts[to]
	if len(conns) == 0 {
		return nil
	}
	last := len(conns) - 1
	c := conns[last]
	if timeout > 0 && time.Since(c.since) > timeout {
		return nil // and those before it; the timer closes them
	}
	conns[last] = nil
	p.hosts[to] = conns[:last]
	p.count--
	return c
}

// put keeps a connection. It reports false where the connection must be closed instead.
func (p *idlePool) put(c *conn, t *Transport) bool {
	c.since = time.Now()
	p.mu.Lock()
	conns := p.hosts[c.to]
	if p.closed || t.MaxIdlePerHost > 0 && len(conns) >= t.MaxIdlePerHost {
		p.mu.Unlock()
		return false
	}
	if p.hosts == nil {
		p.hosts = map[key][]*conn{}
	}
	p.hosts[c.to] = append(conns, c)
	p.count++
	var over *conn
	if t.MaxIdle > 0 && p.count > t.MaxIdle {
		over = p.removeOldestLocked()
	}
	if p.timer == nil && t.IdleTimeout > 0 {
		p.timer = time.AfterFunc(t.IdleTimeout, func() { p.sweep(t.IdleTimeout) })
	}
	p.mu.Unlock()
	if over != nil {
		_ = over.Close()
	}
	return true
}

// removeOldestLocked removes the connection that has been idle for longest.
func (p *idlePool) removeOldestLocked() *conn {
	var oldest *conn
	for _, conns := range p.hosts {
		if len(conns) > 0 && (oldest == nil || conns[0].since.Before(oldest.since)) {
			oldest = conns[0]
		}
	}
	p.hosts[oldest.to] = removeFirst(p.hosts[oldest.to], 1)
	p.count--
	return oldest
}

// sweepsPerTimeout is into how many steps the time that a connection is kept is cut: so that many which
// become idle one after the other are not closed by as many wake-ups.
const sweepsPerTimeout = 16

// sweep closes the connections that were idle for too long, and forgets hosts that have none.
func (p *idlePool) sweep(timeout time.Duration) {
	now := time.Now()
	var old []*conn
	next := timeout
	p.mu.Lock()
	for to, conns := range p.hosts {
		n := 0
		for n < len(conns) && now.Sub(conns[n].since) >= timeout {
			n++
		}
		old = append(old, conns[:n]...)
		if n == len(conns) {
			delete(p.hosts, to)
			continue
		}
		p.hosts[to] = removeFirst(conns, n)
		next = min(next, timeout-now.Sub(conns[0].since))
	}
	p.count -= len(old)
	if len(p.hosts) == 0 {
		p.timer = nil
	} else {
		p.timer.Reset(max(next, timeout/sweepsPerTimeout))
	}
	p.mu.Unlock()
	closeAll(old)
}

// clear closes all, and what becomes idle before the next request.
func (p *idlePool) clear() {
	var all []*conn
	p.mu.Lock()
	for _, conns := range p.hosts {
		all = append(all, conns...)
	}
	p.hosts, p.count, p.closed = nil, 0, true
	p.mu.Unlock()
	closeAll(all)
}

func closeAll(conns []*conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// removeFirst removes the first n, in place.
func removeFirst(conns []*conn, n int) []*conn {
	left := copy(conns, conns[n:])
	clear(conns[left:])
	return conns[:left]
}
