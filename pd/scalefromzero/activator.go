// Package scalefromzero keeps requests whose model has no server in a role, while servers are
// started for them: an Activator has those started and bounds how many requests wait, and a Wait
// is the wait of one. pd asks it when it has found no server; gateway asks which models would be
// served, and knows its error.
package scalefromzero

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// Config bounds the wait for servers that are started for requests.
type Config struct {
	MaxWait    time.Duration // longest time that a request waits; 0: it is refused at once
	MaxWaiting int           // requests that wait at once
}

// Default refuses at once.
func Default() Config { return Config{MaxWaiting: 1024} }

// Validate reports what is wrong with the configuration, nil if nothing.
func (c Config) Validate() error {
	if c.MaxWait < 0 || c.MaxWaiting < 0 {
		return errors.New("hold and max-held-requests must not be negative")
	}
	return nil
}

// Activator keeps requests whose model has no server in a role: those that were scaled to
// zero are started for them. They keep their places past the queue, and so count in its
// bounds, but their time here is no part of what they may wait there. A nil Activator
// keeps none. Its fields are set once, before the first request.
type Activator struct {
	Config Config
	Base   func(model string) (base string, known bool) // whose servers serve it; known if they were there, and may be again
	Models func() []string                              // those that Base knows
	Begin  func()                                       // a base model's first request waits: its servers should be started

	mu      sync.Mutex     // guards waiting
	waiting map[string]int // by base model
}

// WillServe reports whether a request for a model would wait rather than be refused, and for
// which base model's servers.
func (a *Activator) WillServe(model string) (base string, yes bool) {
	if a == nil || a.Config.MaxWait <= 0 {
		return "", false
	}
	return a.Base(model)
}

// WillServeModels are the models whose requests wait.
func (a *Activator) WillServeModels() []string {
	if a == nil || a.Config.MaxWait <= 0 {
		return nil
	}
	return a.Models()
}

// enter takes a place, false if there is none; leave gives it back.
func (a *Activator) enter(base string) (leave func(), ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := 0
	for _, n := range a.waiting {
		all += n
	}
	if all >= a.Config.MaxWaiting {
		return nil, false
	}
	if a.waiting == nil {
		a.waiting = make(map[string]int)
	}
	if a.waiting[base]++; a.waiting[base] == 1 {
		a.Begin()
	}
	return func() { a.leave(base) }, true
}

func (a *Activator) leave(base string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting[base]--; a.waiting[base] == 0 {
		delete(a.waiting, base)
	}
}

const (
	// capacityStep is the least time between two looks at the fleet: many servers change at once,
	// and a request that finds them of no use must not ask for them without end.
	capacityStep = 50 * time.Millisecond
	// capacityBeat is for how long a request waits for a server to change before it looks all the
	// same: some things change by time alone.
	capacityBeat = time.Second
)

// Wait is one request's wait for servers that are started for it. Its zero value has not begun.
type Wait struct {
	base  string
	limit queue.Limit
	leave func() // nil: it has not begun
}

// Enter begins the wait of a request for a model, until its deadline (zero: none) or the longest
// time that one waits; behind the latter the wait ends with tooLate. It is false where the model's
// servers will not come, or no more requests may wait.
func (a *Activator) Enter(model string, deadline time.Time, tooLate error) (w Wait, ok bool) {
	base, will := a.WillServe(model)
	if !will {
		return Wait{}, false
	}
	leave, ok := a.enter(base)
	if !ok {
		return Wait{}, false
	}
	limit := queue.LimitedBy(deadline, time.Now().Add(a.Config.MaxWait), tooLate)
	return Wait{base: base, limit: limit, leave: leave}, true
}

// HasBegun reports whether the wait has its place.
func (w *Wait) HasBegun() bool { return w.leave != nil }

// End gives the place back, if there is one. It is called once.
func (w *Wait) End() {
	if w.leave != nil {
		w.leave()
	}
}

// Await returns nil once each role has a server that is up for the model of a request, which
// keeps its place past the queue. Else it returns the error of its limit (queue.ErrDeadline, or
// that of Enter), queue.ErrDisplaced, ErrNoAdapter, or why the context ended.
func (w *Wait) Await(ctx context.Context, fleet *pools.Fleet, q *queue.Queue, entry *queue.Entry) error {
	ctx, cancel := w.limit.Context(ctx)
	defer cancel()
	return awaitCapacity(ctx, fleet, q, entry, w.base)
}

// ErrNoAdapter says that the servers that were started for a request do not have its
// adapter.
var ErrNoAdapter = errors.New("the base model's servers are back, without the adapter")

// adapterGrace is how long after the servers of the base model are up an adapter is waited
// for that the gateway may not load: something beside the engine may do so.
const adapterGrace = 15 * time.Second

// awaitCapacity returns nil once each role has a server for the model of a request,
// ErrNoAdapter, or why the context ended.
func awaitCapacity(ctx context.Context, fleet *pools.Fleet, q *queue.Queue, entry *queue.Entry, base string) (err error) {
	ctx, release := q.CountWaiting(ctx, entry)
	defer func() {
		if release() {
			err = queue.ErrDisplaced
		}
	}()
	changed, stop := fleet.StateChanges()
	defer stop()
	var without time.Time // since when the base model has servers
	return lookUntil(ctx, changed, func() (bool, error) {
		_, known := fleet.Model(entry.Model)
		switch {
		case serves(fleet, entry.Model):
			return true, nil
		case known || !serves(fleet, base):
			without = time.Time{}
		case without.IsZero():
			without = time.Now()
		case time.Since(without) > adapterGrace:
			return false, ErrNoAdapter
		}
		return false, nil
	})
}

// lookUntil looks soon after each change, and once in a while, until a look finds what it
// looks for or fails. Else it returns why the context ended.
func lookUntil(ctx context.Context, changed <-chan struct{}, look func() (found bool, err error)) error {
	for pools.Pause(ctx, capacityStep) {
		if found, err := look(); found || err != nil {
			return err
		}
		beat := time.NewTimer(capacityBeat)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-beat.C:
		}
		beat.Stop()
	}
	return context.Cause(ctx)
}

// serves reports whether each role has a server for a model that is up. Where no
// prefill server is known at all, decode servers are enough.
func serves(fleet *pools.Fleet, model string) bool {
	now := time.Now()
	var known, up [2]bool
	for _, server := range fleet.Servers() {
		h, serves := server.Health(), server.Serves(model, now)
		for i, leg := range []pools.Role{pools.Prefill, pools.Decode} {
			if server.Role.Serves(leg) {
				known[i] = known[i] || serves || len(h.Models) == 0 // it starts, and may
				up[i] = up[i] || serves && h.Up && !server.Drains()
			}
		}
	}
	return up[1] && (up[0] || !known[0])
}
