package pd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// ScaleFromZeroConfig bounds the wait for servers that are started for requests.
type ScaleFromZeroConfig struct {
	MaxWait    time.Duration // longest time that a request waits; 0: it is refused at once
	MaxWaiting int           // requests that wait at once
}

// DefaultScaleFromZero refuses at once.
func DefaultScaleFromZero() ScaleFromZeroConfig { return ScaleFromZeroConfig{MaxWaiting: 1024} }

// Validate reports what is wrong with the configuration, nil if nothing.
func (c ScaleFromZeroConfig) Validate() error {
	if c.MaxWait < 0 || c.MaxWaiting < 0 {
		return errors.New("hold and max-held-requests must not be negative")
	}
	return nil
}

// ScaleFromZero keeps requests whose model has no server in a role: those that were scaled to
// zero are started for them. They keep their places past the queue, and so count in its
// bounds, but their time here is no part of what they may wait there. A nil ScaleFromZero
// keeps none. Its fields are set once, before the first request.
type ScaleFromZero struct {
	Config ScaleFromZeroConfig
	Base   func(model string) (base string, known bool) // whose servers serve it; known if they were there, and may be again
	Models func() []string                              // those that Base knows
	Begin  func()                                       // a base model's first request waits: its servers should be started

	mu      sync.Mutex     // guards held
	waiting map[string]int // by base model
}

// WillServe reports whether a request for a model would wait rather than be refused, and for
// which base model's servers.
func (h *ScaleFromZero) WillServe(model string) (base string, yes bool) {
	if h == nil || h.Config.MaxWait <= 0 {
		return "", false
	}
	return h.Base(model)
}

// WillServeModels are the models whose requests wait.
func (h *ScaleFromZero) WillServeModels() []string {
	if h == nil || h.Config.MaxWait <= 0 {
		return nil
	}
	return h.Models()
}

// enter takes a place, false if there is none; leave gives it back.
func (h *ScaleFromZero) enter(base string) (leave func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := 0
	for _, n := range h.waiting {
		all += n
	}
	if all >= h.Config.MaxWaiting {
		return nil, false
	}
	if h.waiting == nil {
		h.waiting = make(map[string]int)
	}
	if h.waiting[base]++; h.waiting[base] == 1 {
		h.Begin()
	}
	return func() { h.leave(base) }, true
}

func (h *ScaleFromZero) leave(base string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[base]--; h.waiting[base] == 0 {
		delete(h.waiting, base)
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

// capacityWait is one request's wait for servers that are started for it. Its zero value has
// not begun.
type capacityWait struct {
	base  string
	limit queue.Limit
	leave func() // nil: it has not begun
}

// awaitServers returns nil once a request that found no server may start over, as one that has
// just come: each role has a server that is up. Else it returns the error for the client: the
// one it was given where its model's servers will not come or have not come in time,
// ErrDeadline, ErrDisplaced, ErrNoAdapter, or the context's.
func (o *Orchestrator) awaitServers(ctx context.Context, st *requestState, err error) error {
	var none *NoServerError
	if !errors.As(err, &none) || st.bind.continues {
		return err
	}
	if st.capacity.leave == nil {
		base, will := o.ScaleFromZero.WillServe(st.client.Model)
		if !will {
			return err
		}
		leave, ok := o.ScaleFromZero.enter(base)
		if !ok {
			return err
		}
		limit := queue.LimitedBy(st.client.Deadline, time.Now().Add(o.ScaleFromZero.Config.MaxWait), err)
		st.capacity = capacityWait{base: base, limit: limit, leave: leave}
	}
	ctx, cancel := st.capacity.limit.Context(ctx)
	defer cancel()
	if err := o.awaitCapacity(ctx, st.entry, st.capacity.base); err != nil {
		return err
	}
	st.arrived = time.Now()
	return nil
}

// ErrNoAdapter says that the servers that were started for a request do not have its
// adapter.
var ErrNoAdapter = errors.New("the base model's servers are back, without the adapter")

// adapterGrace is how long after the servers of the base model are up an adapter is waited
// for that the gateway may not load: something beside the engine may do so.
const adapterGrace = 15 * time.Second

// awaitCapacity returns nil once each role has a server for the model of a request,
// ErrNoAdapter, or why the context ended.
func (o *Orchestrator) awaitCapacity(ctx context.Context, p *queue.Entry, base string) (err error) {
	ctx, release := o.Queue.CountWaiting(ctx, p)
	defer func() {
		if release() {
			err = queue.ErrDisplaced
		}
	}()
	changed, stop := o.Fleet.StateChanges()
	defer stop()
	var without time.Time // since when the base model has servers
	return lookUntil(ctx, changed, func() (bool, error) {
		_, known := o.Fleet.Model(p.Model)
		switch {
		case serves(o.Fleet, p.Model):
			return true, nil
		case known || !serves(o.Fleet, base):
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
