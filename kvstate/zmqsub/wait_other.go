//go:build !linux

package zmqsub

import (
	"time"

	zmq "github.com/pebbe/zmq4"
)

// waiter is what the goroutine that owns some sockets waits by. Where there is no epoll it looks a hundred times a
// second.
type waiter struct {
	interrupted chan struct{}
}

func newWaiter() (*waiter, error) {
	return &waiter{interrupted: make(chan struct{}, 1)}, nil
}

func (w *waiter) add(*zmq.Socket, marks) error { return nil }

// until waits until something may have come, for a time, for closing, or for interrupt.
func (w *waiter) until(t time.Time, wanted marks, closing <-chan struct{}) (marks, error) {
	look := time.NewTimer(min(time.Until(t), 10*time.Millisecond))
	defer look.Stop()
	select {
	case <-look.C:
	case <-w.interrupted:
	case <-closing:
	}
	return wanted, nil
}

// rest is what until does in any case.
func (w *waiter) rest(time.Duration, marks, <-chan struct{}) error { return nil }

// interrupt ends a wait, or the next one.
func (w *waiter) interrupt() error {
	select {
	case w.interrupted <- struct{}{}:
	default:
	}
	return nil
}

func (w *waiter) close() error { return nil }
