package engine

import (
	"context"
	"sync"
	"time"
)

// link is a network link of a fixed speed. Transfers under way share it equally:
// each transfer's rate is the speed divided by their number at the time.
type link struct {
	bytesPerSecond float64
	latency        time.Duration // added to each transfer
	scale          float64       // of time; 0: transfers take none

	mu      sync.Mutex
	active  int
	served  float64       // bytes that a transfer active from the start would have got
	since   time.Time     // served is as of then
	changed chan struct{} // closed when active changes
}

func newLink(bytesPerSecond float64, latency time.Duration, scale float64) *link {
	return &link{bytesPerSecond: bytesPerSecond, latency: latency, scale: scale, changed: make(chan struct{})}
}

// transfer returns when that many bytes have gone over the link; the error is the
// context's.
func (l *link) transfer(ctx context.Context, bytes float64) error {
	if l.scale == 0 {
		return ctx.Err()
	}
	sleep(ctx, time.Duration(float64(l.latency)*l.scale))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.joinLocked(1)
	defer l.joinLocked(-1)
	goal := l.served + bytes
	for ctx.Err() == nil {
		l.advanceLocked()
		left := goal - l.served
		if left <= 0 {
			return nil
		}
		seconds := left * float64(l.active) / l.bytesPerSecond * l.scale
		changed := l.changed
		l.mu.Unlock()
		timer := time.NewTimer(time.Duration(seconds*float64(time.Second)) + 1)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
		l.mu.Lock()
	}
	return ctx.Err()
}

// joinLocked changes the number of transfers and notifies the others.
func (l *link) joinLocked(n int) {
	l.advanceLocked()
	l.active += n
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) advanceLocked() {
	now := time.Now()
	if l.active > 0 {
		l.served += now.Sub(l.since).Seconds() * l.bytesPerSecond / l.scale / float64(l.active)
	}
	l.since = now
}
