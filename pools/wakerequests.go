package pools

import (
	"sync"
	"time"
)

// WakeRequests are the requests that wait for a server to be awake. Package standby wakes it.
type WakeRequests struct {
	due     chan struct{}
	mu      sync.Mutex // guards the rest
	open    bool       // somebody fulfils them
	pending *readiness // nil: none
	refused time.Time  // until when it is not asked again
}

func newWakeRequests() *WakeRequests { return &WakeRequests{due: make(chan struct{}, 1)} }

// Ask asks for the server to be woken, for whoever does not wait for it.
func (r *WakeRequests) Ask() { _, _ = r.take() } // where nobody wakes it there is nothing to be said

// take asks for the server to be woken and returns what to wait for.
func (r *WakeRequests) take() (*readiness, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.pending != nil:
		return r.pending, nil
	case !r.open:
		return nil, errLeft
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

// Due says that the server is to be woken.
func (r *WakeRequests) Due() <-chan struct{} { return r.due }

// Finish says that the server is awake, or why not; then it is not asked again for a time.
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

// Open says that the server is woken from now on.
func (r *WakeRequests) Open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = true
}

// Close says that it is not any more: what waits for it fails.
func (r *WakeRequests) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = false
	if r.pending != nil {
		r.pending.end(errLeft)
		r.pending = nil
	}
}
