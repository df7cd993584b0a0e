package pools

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// standbyState is what a server could be made ready for.
type standbyState struct {
	loadRequests *LoadRequests
	wakeRequests *WakeRequests
	gpus         GPUShare
}

// LoadRequests are the adapters that requests ask the server to load, WakeRequests those that
// wait for it to be awake, GPUShare is its part in sharing GPUs.
func (l *standbyState) LoadRequests() *LoadRequests { return l.loadRequests }

func (l *standbyState) WakeRequests() *WakeRequests { return l.wakeRequests }

func (l *standbyState) GPUShare() *GPUShare { return &l.gpus }

// OpenStandby says that the server is made ready for what requests ask: also for what they asked before, and nobody did.
// The entry of a server may change, and another one follows it then.
func (l *standbyState) OpenStandby() {
	l.loadRequests.open()
	l.wakeRequests.open()
}

// CloseStandby says that the server is not made ready any more: what is requested fails.
func (l *standbyState) CloseStandby() {
	l.loadRequests.close()
	l.wakeRequests.close()
}

// errStopped: the server is not made ready any more.
var errStopped = errors.New("the server has left the fleet")

// readiness is what a server is to be made ready for. err may be read once done is closed.
type readiness struct {
	done chan struct{}
	err  error
}

func (r *readiness) end(err error) {
	r.err = err
	close(r.done)
}

// wake puts a token into a channel that has room for one.
func wake(due chan<- struct{}) {
	select {
	case due <- struct{}{}:
	default:
	}
}

// LoadRequests are the adapters of the directory that requests ask a server to load, and when
// each was used last. Package standby loads them.
type LoadRequests struct {
	// of this gateway's: loads that succeeded and failed, and unloads
	loaded, failed, unloaded atomic.Uint64

	due     chan struct{}
	mu      sync.Mutex // guards the rest
	closed  bool       // they are not carried out any more
	pending map[string]*readiness
	inUse   map[string]int       // leases that hold it
	used    map[string]time.Time // when it was last taken or given back
	found   map[string]time.Time // when it was first found on the server, of those not in used
	others  map[string]time.Time // when another gateway last said that it uses it
	refused map[string]time.Time // until when an adapter is not asked for again
}

func newLoadRequests() *LoadRequests {
	return &LoadRequests{
		pending: make(map[string]*readiness), inUse: make(map[string]int), used: make(map[string]time.Time),
		found: make(map[string]time.Time), others: make(map[string]time.Time), refused: make(map[string]time.Time), due: make(chan struct{}, 1),
	}
}

// take takes the adapter into use, and returns what to wait for; nil if the server has the
// adapter. Requests for the same adapter wait for the same.
func (r *LoadRequests) take(name string, loaded bool, now time.Time) (*readiness, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[name] = now
	r.inUse[name]++
	pending := r.pending[name]
	switch {
	case pending != nil:
		return pending, nil
	case loaded:
		return nil, nil
	case r.closed:
		return nil, errStopped
	}
	pending = &readiness{done: make(chan struct{})}
	r.pending[name] = pending
	wake(r.due)
	return pending, nil
}

// release gives one use back.
func (r *LoadRequests) release(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[name] = now
	r.inUse[name]--
}

func (r *LoadRequests) refuses(name string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.refused[name])
}

// Due is notified when an adapter is requested.
func (r *LoadRequests) Due() <-chan struct{} { return r.due }

// Next returns the name of an adapter that is asked for, "" if there is none.
func (r *LoadRequests) Next() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.pending {
		return name
	}
	return ""
}

// Finish records that an adapter was loaded, or why not; then it is not requested again for a
// time.
func (r *LoadRequests) Finish(name string, err error, refusal time.Duration, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pending := r.pending[name]
	if pending == nil {
		return
	}
	delete(r.pending, name)
	delete(r.refused, name)
	if err != nil {
		r.refused[name] = now.Add(refusal)
	}
	pending.end(err)
}

func (r *LoadRequests) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed = false; len(r.pending) > 0 {
		wake(r.due)
	}
}

func (r *LoadRequests) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for name, pending := range r.pending {
		delete(r.pending, name)
		pending.end(errStopped)
	}
}

// LastUse returns when an adapter was last taken or given back, and by how many
// leases it is held. One that is found for the first time counts as taken then, since
// another gateway may use it.
func (r *LoadRequests) LastUse(name string, now time.Time) (at time.Time, held int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, used := r.used[name]; used {
		return at, r.inUse[name]
	}
	if _, known := r.found[name]; !known {
		r.found[name] = now
	}
	return r.found[name], r.inUse[name]
}

// LastUseOfAll is LastUse by this gateway or another, as far as others report it.
func (r *LoadRequests) LastUseOfAll(name string, now time.Time) time.Time {
	own, _ := r.LastUse(name, now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if of := r.others[name]; of.After(own) {
		return of
	}
	return own
}

// RecordOthersUse records that another gateway uses an adapter on the server.
func (r *LoadRequests) RecordOthersUse(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.others[name] = now
}

// UsedSince are the adapters that this gateway holds, or took or gave back since a time.
func (r *LoadRequests) UsedSince(since time.Time) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, at := range r.used {
		if r.inUse[name] > 0 || !at.Before(since) {
			names = append(names, name)
		}
	}
	return names
}

// forget lets an adapter that the server has no more count as found anew when it is there again: then another
// gateway had it loaded, and uses it.
func (r *LoadRequests) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.used, name)
	delete(r.found, name)
	delete(r.others, name)
}

// WakeRequests are the requests that wait for a server to be awake. Package standby wakes it.
type WakeRequests struct {
	due     chan struct{}
	mu      sync.Mutex // guards the rest
	closed  bool       // they are not carried out any more
	pending *readiness // nil: none
	refused time.Time  // until when it is not asked again
}

func newWakeRequests() *WakeRequests { return &WakeRequests{due: make(chan struct{}, 1)} }

// Ask asks for the server to be woken, and does not wait for it.
func (r *WakeRequests) Ask() { _, _ = r.take() } // where it is not woken the caller asks again anyway

// take asks for the server to be woken and returns what to wait for.
func (r *WakeRequests) take() (*readiness, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.pending != nil:
		return r.pending, nil
	case r.closed:
		return nil, errStopped
	}
	r.pending = &readiness{done: make(chan struct{})}
	wake(r.due)
	return r.pending, nil
}

// Refuses reports whether the server could not be woken just now.
func (r *WakeRequests) Refuses(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.Before(r.refused)
}

// Due is notified when the server is to be woken.
func (r *WakeRequests) Due() <-chan struct{} { return r.due }

// Finish records that the server is awake, or why not; then it is not asked again for a time.
func (r *WakeRequests) Finish(err error, refusal time.Duration, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil {
		return
	}
	r.refused = time.Time{}
	if err != nil {
		r.refused = now.Add(refusal)
	}
	r.pending.end(err)
	r.pending = nil
}

func (r *WakeRequests) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed = false; r.pending != nil {
		wake(r.due)
	}
}

func (r *WakeRequests) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.pending != nil {
		r.pending.end(errStopped)
		r.pending = nil
	}
}
