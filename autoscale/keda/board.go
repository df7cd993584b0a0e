package keda

import (
	"errors"
	"sync"
	"time"
)

// Pool names what one ScaledObject scales: the servers of a model in a role, of one kind
// of hardware where that is chosen; without a variant it is all of them.
type Pool struct{ Model, Role, Variant string }

// Reading is what is published of a pool.
type Reading struct {
	Replicas int    // wanted, as KEDA counts them: pods or groups, not ranks
	Size     int    // ranks that each engine should have, where they grow in place; 0: as it is
	Held     int    // requests that wait because the pool has no server
	Reason   string // of the number, in a word; a label of metrics
	At       time.Time
}

// Active reports whether the pool must have a server.
func (r Reading) Active() bool { return r.Replicas > 0 || r.Held > 0 }

// Why a pool has no reading.
var (
	ErrUnknown = errors.New("nothing is known of this pool")
	ErrStale   = errors.New("what is known of this pool is too old")
)

// Board is where decisions are published and read.
type Board struct {
	maxAge time.Duration

	mu       sync.Mutex // guards what follows
	readings map[Pool]Reading
	changed  chan struct{} // closed and replaced by Publish
}

// NewBoard returns an empty board, whose readings count for maxAge.
func NewBoard(maxAge time.Duration) *Board {
	return &Board{maxAge: maxAge, changed: make(chan struct{})}
}

// Publish replaces all readings. Pools that are left out are unknown from now on. The
// map belongs to the board.
func (b *Board) Publish(readings map[Pool]Reading) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readings = readings
	close(b.changed)
	b.changed = make(chan struct{})
}

// Read returns the reading of a pool, ErrUnknown or ErrStale.
func (b *Board) Read(p Pool, now time.Time) (Reading, error) {
	r, _, err := b.watch(p, now)
	return r, err
}

// watch is Read, and a channel that is closed when the answer may have changed.
func (b *Board) watch(p Pool, now time.Time) (r Reading, changed <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, known := b.readings[p]
	switch {
	case !known:
		return Reading{}, b.changed, ErrUnknown
	case now.Sub(r.At) > b.maxAge:
		return Reading{}, b.changed, ErrStale
	}
	return r, b.changed, nil
}

// fresh returns all readings that count.
func (b *Board) fresh(now time.Time) map[Pool]Reading {
	b.mu.Lock()
	defer b.mu.Unlock()
	fresh := make(map[Pool]Reading, len(b.readings))
	for p, r := range b.readings {
		if now.Sub(r.At) <= b.maxAge {
			fresh[p] = r
		}
	}
	return fresh
}
