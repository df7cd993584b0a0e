package health

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// rankAddresses are the addresses behind which there are data-parallel ranks.
type rankAddresses struct {
	oldest time.Duration // age of an answer from which on it is asked for again

	mu     sync.Mutex // guards what follows
	shared map[string]*rankAddress
}

func newRankAddresses(interval time.Duration) *rankAddresses {
	return &rankAddresses{oldest: shortestPause(interval), shared: make(map[string]*rankAddress)}
}

// join has a server that is a rank asked together with the others at its address, until leave is called. Ranks whose
// metrics are elsewhere, at places of their own, are read by themselves.
func (a *rankAddresses) join(p *prober) (leave func()) {
	if p.server.Rank == nil {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := p.server.URL + " " + p.server.Metrics
	l := a.shared[key]
	if l == nil {
		l = &rankAddress{oldest: a.oldest}
		a.shared[key] = l
	}
	l.add(p)
	p.ranks = l
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if l.remove(p) == 0 {
			delete(a.shared, key)
		}
	}
}

// rankAddress is what the ranks behind one address share. Its health and its models are those of all: what one has just
// been told holds for others that are up. Its pages show the loads of all together: the rank that first finds its load old
// asks for the page and reads it for all that are up.
type rankAddress struct {
	oldest time.Duration // as in rankAddresses

	asking sync.Mutex // guards load and loadRead of each prober. A page is asked for under it: it is tried, never waited for

	mu       sync.Mutex // guards what follows
	ranks    []*prober
	awaiting []*prober // those whose load is to be read
	well     time.Time // when a rank asked that was told that the engine is well; zero: not known
	models   []pools.Model
}

// recordWell takes in that the engine was well and served these models when it was asked at a time.
func (l *rankAddress) recordWell(asked time.Time, models []pools.Model) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.well, l.models = asked, models
}

// forgetWell has each rank ask for itself again: one of them was told otherwise.
func (l *rankAddress) forgetWell() { l.recordWell(time.Time{}, nil) }

// isWell reports whether a rank was told within the time of a probe that the engine is well, and serves just these models.
func (l *rankAddress) isWell(models []pools.Model) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.well) < l.oldest && slices.EqualFunc(l.models, models, equalButCreated)
}

// equalButCreated compares what is known of a model but for when it was made: vLLM says now, whenever it is asked.
func equalButCreated(a, b pools.Model) bool {
	a.Created = b.Created
	return a == b
}

func (l *rankAddress) add(p *prober) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranks = append(l.ranks, p)
}

// remove returns how many are left.
func (l *rankAddress) remove(p *prober) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ranks = slices.DeleteFunc(l.ranks, func(other *prober) bool { return other == p })
	return len(l.ranks)
}

func (l *rankAddress) all() []*prober {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ranks)
}

// read reads the load of a rank that is up, unless another rank has just done so. While another one asks, it is left to
// that one: what it reads may have been asked for before this rank was up.
func (l *rankAddress) read(ctx context.Context, p *prober) {
	l.await(p)
	for l.awaited() && l.asking.TryLock() {
		l.readAwaited(ctx)
		l.asking.Unlock()
	}
}

// readAwaited reads the page once for all that wait for it and all others that are up, if it is old for one that waits.
func (l *rankAddress) readAwaited(ctx context.Context) {
	waiting := l.takeAwaiting()
	old := slices.IndexFunc(waiting, func(p *prober) bool { return time.Since(p.loadRead) >= l.oldest })
	if old < 0 {
		return
	}
	p := waiting[old]
	if !p.readLoad(ctx) {
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

func (l *rankAddress) await(p *prober) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.awaiting = append(l.awaiting, p)
}

// awaited reports whether a rank waits for its load.
func (l *rankAddress) awaited() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.awaiting) > 0
}

func (l *rankAddress) takeAwaiting() []*prober {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.awaiting
	l.awaiting = nil
	return waiting
}
