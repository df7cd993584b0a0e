package zmqsub

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// waiter is what the goroutine that owns some sockets waits by: an epoll of their descriptors, for which the Go
// runtime waits as it does for connections. In ZMQ's own poller each goroutine keeps a thread of the system, and
// the processor that it had until the runtime's monitor takes it away.
type waiter struct {
	sockets *os.File
	waits   syscall.RawConn
}

func newWaiter(sockets ...*zmq.Socket) (*waiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err = unix.SetNonblock(fd, true); err != nil { // says to package os that it can be waited for
		return nil, errors.Join(err, unix.Close(fd))
	}
	w := &waiter{sockets: os.NewFile(uintptr(fd), "epoll")}
	w.waits, err = w.sockets.SyscallConn()
	if err = errors.Join(err, w.sockets.SetReadDeadline(time.Time{})); err != nil { // package os does not say that the poller refused it
		return nil, errors.Join(err, w.close())
	}
	for _, socket := range sockets {
		if err = w.add(socket); err != nil {
			return nil, errors.Join(err, w.close())
		}
	}
	return w, nil
}

// add makes what comes on one more socket end a wait. It may be closed before the waiter.
func (w *waiter) add(socket *zmq.Socket) error {
	fd, err := socket.GetFd()
	if err != nil {
		return err
	}
	failed := w.waits.Control(func(sockets uintptr) {
		err = unix.EpollCtl(int(sockets), unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN})
	})
	return errors.Join(err, failed)
}

// until waits until ready, for a time, or for interrupt. A socket's descriptor tells only of what has
// come since the socket was asked: ready has to ask each that it waits for.
func (w *waiter) until(t time.Time, ready func() (bool, error)) (err error) {
	if err = w.sockets.SetReadDeadline(t); err != nil {
		return err
	}
	failed := w.waits.Read(func(uintptr) (is bool) {
		is, err = ready()
		return is || err != nil
	})
	if errors.Is(failed, os.ErrDeadlineExceeded) {
		return err
	}
	return errors.Join(err, failed)
}

// interrupt ends a wait. One that begins meanwhile has to see by its ready that it should not.
func (w *waiter) interrupt() error { return w.sockets.SetReadDeadline(time.Unix(1, 0)) }

func (w *waiter) close() error { return w.sockets.Close() }
