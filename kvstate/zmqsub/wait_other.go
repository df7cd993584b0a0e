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

func newWaiter(...*zmq.Socket) (*waiter, error) {
	return &waiter{interrupted: make(chan struct{}, 1)}, nil
}

func (w *waiter) add(*zmq.Socket) error { return nil }

// until waits until ready, for a time, or for interrupt.
func (w *waiter) until(t time.Time, ready func() (bool, error)) error {
	looks := time.NewTicker(10 * time.Millisecond)
	defer looks.Stop()
	for time.Now().Before(t) {
		if is, err := ready(); is || err != nil {
			return err
		}
		select {
		case <-looks.C:
		case <-w.interrupted:
			return nil
		}
	}
	return nil
}

// interrupt ends a wait, or the next one.
func (w *waiter) interrupt() error {
	select {
	case w.interrupted <- struct{}{}:
	default:
	}
	return nil
}

func (w *waiter) close() error { return nil }
