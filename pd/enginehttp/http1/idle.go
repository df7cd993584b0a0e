package http1

import (
	"sync"
	"time"
)

// idlePool holds connections that no exchange uses. One timer closes those that were idle for too long.
type idlePool struct {
	mu     sync.Mutex
	hosts  map[key]*idleHost
	count  int
	timer  *time.Timer // nil: none is idle
	closed bool        // until the next request, none is kept
}

// idleHost is the idle connections to one host. The last one that became idle is the last; it is used first.
type idleHost struct{ conns []*conn }

// take returns the connection that became idle last, nil if none did within the timeout.
func (p *idlePool) take(to key, timeout time.Duration) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	host := p.hosts[to]
	if host == nil || len(host.conns) == 0 {
		return nil
	}
	last := len(host.conns) - 1
	c := host.conns[last]
	if timeout > 0 && time.Since(c.since) > timeout {
		return nil // and those before it; the timer closes them
	}
	host.conns[last] = nil
	host.conns = host.conns[:last]
	p.count--
	return c
}

// put keeps a connection. It reports false where the connection must be closed instead.
func (p *idlePool) put(c *conn, t *Transport) bool {
	c.since = time.Now()
	p.mu.Lock()
	host := p.hosts[c.to]
	if p.closed || t.MaxIdlePerHost > 0 && host != nil && len(host.conns) >= t.MaxIdlePerHost {
		p.mu.Unlock()
		return false
	}
	if host == nil {
		host = p.addLocked(c.to)
	}
	host.conns = append(host.conns, c)
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

func (p *idlePool) addLocked(to key) *idleHost {
	if p.hosts == nil {
		p.hosts = make(map[key]*idleHost)
	}
	host := new(idleHost)
	p.hosts[to] = host
	return host
}

// removeOldestLocked removes the connection that has been idle for longest.
func (p *idlePool) removeOldestLocked() *conn {
	var oldest *conn
	var of *idleHost
	for _, host := range p.hosts {
		if len(host.conns) > 0 && (oldest == nil || host.conns[0].since.Before(oldest.since)) {
			oldest, of = host.conns[0], host
		}
	}
	of.removeFirst(1)
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
	for to, host := range p.hosts {
		conns, n := host.conns, 0
		for n < len(conns) && now.Sub(conns[n].since) >= timeout {
			n++
		}
		old = append(old, conns[:n]...)
		if n == len(conns) {
			delete(p.hosts, to)
			continue
		}
		host.removeFirst(n)
		next = min(next, timeout-now.Sub(host.conns[0].since))
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
	for _, host := range p.hosts {
		all = append(all, host.conns...)
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
func (h *idleHost) removeFirst(n int) {
	left := copy(h.conns, h.conns[n:])
	clear(h.conns[left:])
	h.conns = h.conns[:left]
}
