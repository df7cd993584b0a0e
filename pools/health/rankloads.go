package health

import (
	"context"
	"slices"
	"sync"
	"time"
)

// rankAddresses are the addresses behind which there are data-parallel ranks.
type rankAddresses struct {
	oldest time.Duration // age of a load from which on it is read again

	mu    sync.Mutex // guards what follows
	loads map[string]*rankLoads
}

func newRankAddresses(interval time.Duration) *rankAddresses {
	return &rankAddresses{oldest: shortestPause(interval), loads: make(map[string]*rankLoads)}
}

// join has the load of a server that is a rank read together with those of the others at its address, until leave is
// called. Ranks whose metrics are elsewhere, at places of their own, are read by themselves.
func (a *rankAddresses) join(p *prober) (leave func()) {
	if p.server.Rank == nil {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := p.server.URL + " " + p.server.Metrics
	l := a.loads[key]
	if l == nil {
		l = &rankLoads{oldest: a.oldest}
		a.loads[key] = l
	}
	l.add(p)
	p.ranks = l
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if l.remove(p) == 0 {
			delete(a.loads, key)
		}
	}
}

// rankLoads are the loads of the ranks behind one address, which its pages show together. The rank that first finds its
// load old asks for the page and reads it for all that are up.
type rankLoads struct {
	oldest time.Duration // as in rankAddresses

	asking sync.Mutex // guards load and loadRead of each prober. A page is asked for under it: it is tried, never waited for

	mu    sync.Mutex // guards what follows
	ranks []*prober
}

func (l *rankLoads) add(p *prober) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranks = append(l.ranks, p)
}

// remove returns how many are left.
func (l *rankLoads) remove(p *prober) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranks = slices.DeleteFunc(l.ranks, func(other *prober) bool { return other == p })
	return len(l.ranks)
}

func (l *rankLoads) all() []*prober {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ranks)
}

// read reads the load of a rank that is up, unless another rank is just doing so or has just done so.
func (l *rankLoads) read(ctx context.Context, p *prober) {
	if !l.asking.TryLock() {
		return
	}
	defer l.asking.Unlock()
	if time.Since(p.loadRead) < l.oldest || !p.readLoad(ctx) {
		return
	}
	p.loadRead = time.Now()
	for _, other := range l.all() {
		if other == p || !other.server.Health().Up {
			continue
		}
		if load, ok := other.load.ReadFrom(p.load); ok {
			other.server.ReportLoad(load)
			other.loadRead = p.loadRead
		}
	}
}
