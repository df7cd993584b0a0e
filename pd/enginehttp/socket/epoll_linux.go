package socket

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Epoll is an epoll of descriptors, each with an ID of its owner's, for which goroutines wait in the runtime's poller.
type Epoll struct {
	file *os.File
	raw  syscall.RawConn
}

// Events are what an Epoll reports at a time, at most.
type Events = [64]unix.EpollEvent

// NewEpoll returns an epoll without a descriptor.
func NewEpoll() (*Epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // which lets the runtime wait for it
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), unix.Close(fd))
	}
	e := &Epoll{file: os.NewFile(uintptr(fd), "epoll")}
	e.raw, err = e.file.SyscallConn()
	if err = errors.Join(err, e.file.SetReadDeadline(time.Time{})); err != nil { // package os does not say that the poller refused it
		return nil, errors.Join(fmt.Errorf("epoll: %w", err), e.file.Close())
	}
	return e, nil
}

// Close ends Wait.
func (e *Epoll) Close() error { return e.file.Close() }

// Add reports what of conditions (EPOLLIN ...) comes about of a descriptor, until that is closed or removed.
func (e *Epoll) Add(fd int, conditions uint32, id uint64) error {
	event := unix.EpollEvent{Events: conditions, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	return e.control(unix.EPOLL_CTL_ADD, fd, &event)
}

// Remove reports nothing more of a descriptor.
func (e *Epoll) Remove(fd int) error { return e.control(unix.EPOLL_CTL_DEL, fd, nil) }

func (e *Epoll) control(op, fd int, event *unix.EpollEvent) (err error) {
	var failed error
	err = e.raw.Control(func(epoll uintptr) { failed = unix.EpollCtl(int(epoll), op, fd, event) })
	return errors.Join(err, failed)
}

// Wait waits for events.
func (e *Epoll) Wait(events *Events) (n int, err error) {
	err = e.raw.Read(func(fd uintptr) bool {
		n = poll(fd, events[:])
		return n > 0
	})
	return n, err
}

// Poll takes the events that are there. It fails once the epoll is closed.
func (e *Epoll) Poll(events []unix.EpollEvent) (n int, err error) {
	err = e.raw.Control(func(fd uintptr) { n = poll(fd, events) })
	return n, err
}

// IDOf is the ID of the descriptor that an event is of.
func IDOf(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// poll takes the events that are there. It does not block, and so it is not announced to the runtime, whose monitor
// each announced call would wake up.
func poll(epoll uintptr, events []unix.EpollEvent) (n int) {
	for {
		n, _, err := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
		switch err {
		case 0:
			return int(n)
		case syscall.EINTR:
		default:
			return 0
		}
	}
}
