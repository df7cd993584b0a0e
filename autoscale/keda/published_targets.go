package keda

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pool names what one ScaledObject scales: the servers of a model in a role, of one kind
// of hardware where that is chosen; without a variant it is all of them.
type Pool struct{ Model, Role, Variant string }

// Validate reports what is wrong with the name of a pool, nil if nothing.
func (p Pool) Validate() error {
	if p.Model == "" {
		return errors.New("the model is missing")
	}
	if p.Role != "prefill" && p.Role != "decode" {
		return fmt.Errorf("role %q is neither prefill nor decode", p.Role)
	}
	return nil
}

// Target is what is published of a pool.
type Target struct {
	Replicas           int    // wanted, as KEDA counts them: pods or groups, not ranks
	Size               int    // ranks that each engine should have, where they grow in place; 0: as it is
	WaitingForCapacity int    // requests that wait because the pool has no server
	Reason             string // of the number, in a word; a label of metrics
	At                 time.Time
}

// Active reports whether the pool must have a server.
func (r Target) Active() bool { return r.Replicas > 0 || r.WaitingForCapacity > 0 }

// Why a pool has no reading.
var (
	ErrUnknown = errors.New("nothing is known of this pool")
	ErrStale   = errors.New("what is known of this pool is too old")
)

// PublishedTargets are what is wanted of each pool, as KEDA reads it.
type PublishedTargets struct {
	maxAge time.Duration

	mu      sync.Mutex // guards what follows
	targets map[Pool]Target
	changed chan struct{} // closed and replaced by Publish
}

// NewPublishedTargets returns targets of which none is published; each counts for maxAge.
func NewPublishedTargets(maxAge time.Duration) *PublishedTargets {
	return &PublishedTargets{maxAge: maxAge, changed: make(chan struct{})}
}

// Publish replaces all targets. Pools that are left out are unknown from now on. The
// map belongs to the targets.
func (t *PublishedTargets) Publish(targets map[Pool]Target) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.targets = targets
	close(t.changed)
	t.changed = make(chan struct{})
}

// Read returns the reading of a pool, ErrUnknown or ErrStale.
func (t *PublishedTargets) Read(p Pool, now time.Time) (Target, error) {
	r, _, err := t.watch(p, now)
	return r, err
}

// watch is Read, and a channel that is closed when the answer may have changed.
func (t *PublishedTargets) watch(p Pool, now time.Time) (r Target, changed <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, known := t.targets[p]
	switch {
	case !known:
		return Target{}, t.changed, ErrUnknown
	case now.Sub(r.At) > t.maxAge:
		return Target{}, t.changed, ErrStale
	}
	return r, t.changed, nil
}

// all returns what was published last, stale or not. Nobody changes the map.
func (t *PublishedTargets) all() map[Pool]Target {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.targets
}
