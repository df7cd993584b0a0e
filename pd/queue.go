package pd

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// Errors of the waiting place.
var (
	ErrQueueFull    = errors.New("the gateway's queue is full")
	ErrQueueTimeout = errors.New("the request waited too long in the gateway's queue")
)

// QueueConfig bounds what the gateway holds.
type QueueConfig struct {
	MaxInFlight int           // requests past the queue, to the end of their streams
	MaxWaiting  int           // requests in the queue
	MaxBytes    int64         // request bodies in the queue and in flight
	MaxWait     time.Duration // in the queue
}

// DefaultQueue holds what one process can: each stream takes two descriptors.
func DefaultQueue() QueueConfig {
	return QueueConfig{MaxInFlight: 4096, MaxWaiting: 4096, MaxBytes: 2 << 30, MaxWait: 30 * time.Second}
}

// Queue is the waiting place, first come first served. A request that leaves it
// is bound to its servers at once.
type Queue struct {
	cfg   QueueConfig
	slots *semaphore.Weighted // first in, first out

	mu       sync.Mutex // guards the counts
	waiting  int
	inFlight int
	bytes    int64
}

// NewQueue returns an empty queue.
func NewQueue(cfg QueueConfig) *Queue {
	return &Queue{cfg: cfg, slots: semaphore.NewWeighted(int64(cfg.MaxInFlight))}
}

// Enter waits for the request's turn and returns what ends its stay. The error
// is ErrQueueFull, ErrQueueTimeout, or the context's.
func (q *Queue) Enter(ctx context.Context, bytes int) (leave func(), err error) {
	if !q.join(int64(bytes)) {
		return nil, ErrQueueFull
	}
	patience, cancel := context.WithTimeoutCause(ctx, q.cfg.MaxWait, ErrQueueTimeout)
	defer cancel()
	if q.slots.Acquire(patience, 1) != nil {
		q.quit(int64(bytes))
		return nil, context.Cause(patience)
	}
	q.mu.Lock()
	q.waiting--
	q.inFlight++
	q.mu.Unlock()
	return sync.OnceFunc(func() {
		q.mu.Lock()
		q.inFlight--
		q.bytes -= int64(bytes)
		q.mu.Unlock()
		q.slots.Release(1)
	}), nil
}

func (q *Queue) join(bytes int64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	full := q.waiting >= q.cfg.MaxWaiting && q.inFlight >= q.cfg.MaxInFlight
	if full || q.bytes+bytes > q.cfg.MaxBytes {
		return false
	}
	q.waiting++
	q.bytes += bytes
	return true
}

func (q *Queue) quit(bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
	q.bytes -= bytes
}

// Len returns how many requests wait and how many are past the queue.
func (q *Queue) Len() (waiting, inFlight int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting, q.inFlight
}

// Validate reports what is wrong with the configuration, nil if nothing.
func (c QueueConfig) Validate() error {
	if c.MaxInFlight < 1 || c.MaxWaiting < 0 || c.MaxBytes < 1 || c.MaxWait <= 0 {
		return errors.New("max-in-flight, max-held and max-wait must be positive, max-waiting not negative")
	}
	return nil
}
