package zmqsub

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	zmq "github.com/pebbe/zmq4"
	"golang.org/x/sys/unix"
)

// waiter is what the goroutine that owns some sockets waits by: an epoll of their descriptors, for which the Go
// runtime waits as it does for connections. In ZMQ's own poller each goroutine keeps a thread of the system, and
// the processor that it had until the runtime's monitor takes it away.
type waiter struct {
	epoll       *os.File
	waits       syscall.RawConn
	descriptors map[marks]int
	timer       int       // descriptor of what ends rests; 0: there was none
	deadline    time.Time // of waits
}

func newWaiter() (*waiter, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err = unix.SetNonblock(fd, true); err != nil { // says to package os that it can be waited for
		return nil, errors.Join(err, unix.Close(fd))
	}
	w := &waiter{epoll: os.NewFile(uintptr(fd), "epoll"), descriptors: map[marks]int{}}
	w.waits, err = w.epoll.SyscallConn()
	if err = errors.Join(err, w.epoll.SetReadDeadline(time.Time{})); err != nil { // package os does not say that the poller refused it
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// add makes what comes on one more socket end waits for its mark. It may be closed before the waiter.
func (w *waiter) add(socket *zmq.Socket, mark marks) error {
	fd, err := socket.GetFd()
	if err != nil {
		return err
	}
	w.descriptors[mark] = fd
	return w.control(unix.EPOLL_CTL_ADD, mark, unix.EPOLLIN)
}

func (w *waiter) control(operation int, mark marks, events uint32) (err error) {
	failed := w.waits.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), operation, w.descriptors[mark], &unix.EpollEvent{Events: events, Fd: int32(mark)})
	})
	return errors.Join(err, failed)
}

// until waits for what comes on a socket with one of the marks, for a time, for closing, or for interrupt, and returns
// the marks of all sockets on which something has come. A socket's descriptor tells only of what has come since the
// socket was found empty: who waits has to have read it to its end. ZMQ is not asked, since the first call of C behind a
// rest wakes up the runtime's monitor.
func (w *waiter) until(t time.Time, wanted marks, closing <-chan struct{}) (marks, error) {
	if t != w.deadline {
		if err := w.epoll.SetReadDeadline(t); err != nil {
			return 0, err
		}
		w.deadline = t
	}
	return w.wait(wanted, closing)
}

func (w *waiter) wait(wanted marks, closing <-chan struct{}) (came marks, err error) {
	failed := w.waits.Read(func(epoll uintptr) bool {
		select {
		case <-closing:
			return true
		default:
		}
		came, err = look(epoll)
		return came&wanted != 0 || err != nil
	})
	if errors.Is(failed, os.ErrDeadlineExceeded) {
		return came, err
	}
	return came, errors.Join(err, failed)
}

// rest waits for a time, for closing, or for interrupt, and lets nobody be woken up by what comes on a socket meanwhile. Its
// timer is the kernel's: for one of Go's the runtime wakes up its monitor too.
func (w *waiter) rest(during time.Duration, mark marks, closing <-chan struct{}) error {
	if w.timer == 0 {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
		if err != nil {
			return fmt.Errorf("timer: %w", err)
		}
		w.timer, w.descriptors[onTime] = fd, fd
		if err = w.control(unix.EPOLL_CTL_ADD, onTime, unix.EPOLLIN); err != nil {
			return err
		}
	}
	end := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(during))}
	if err := errors.Join(unix.TimerfdSettime(w.timer, 0, &end, nil), w.control(unix.EPOLL_CTL_MOD, mark, 0)); err != nil {
		return err
	}
	_, err := w.wait(onTime, closing)
	return errors.Join(err, w.control(unix.EPOLL_CTL_MOD, mark, unix.EPOLLIN))
}

// look returns the marks of the sockets of an epoll on which something has come. It does not block, and so it is not
// announced to the runtime.
func look(epoll uintptr) (came marks, err error) {
	var found [4]unix.EpollEvent // an owner's sockets and timer
	for {
		n, _, failed := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&found)), uintptr(len(found)), 0, 0, 0)
		switch failed {
		case 0:
			for _, event := range found[:n] {
				came |= marks(event.Fd)
			}
			return came, nil
		case syscall.EINTR:
		default:
			return 0, fmt.Errorf("epoll: %w", failed)
		}
	}
}

// interrupt ends a wait. One that begins meanwhile ends by what is closing.
func (w *waiter) interrupt() error { return w.epoll.SetReadDeadline(time.Unix(1, 0)) }

func (w *waiter) close() error {
	err := w.epoll.Close()
	if w.timer != 0 {
		err = errors.Join(err, unix.Close(w.timer))
	}
	return err
}
