package socket

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Loop waits for many connections in one goroutine, which reads what comes and has it dealt with: no goroutine of
// theirs is woken up for it, and what comes at about the same time is taken along. Its goroutine runs while a connection
// is taken. The zero value is ready.
type Loop struct {
	mu    sync.Mutex        // guards all below
	epoll *Epoll            // of the goroutine that runs; nil: none does
	taken int               // connections
	conns map[uint64]*Taken // those that are followed, by ID
	last  uint64            // ID that was given; a descriptor's number would be another connection's soon
}

// Taken is a connection that is out of the runtime's poller, which else would wake up a thread for all that comes. It is
// of one goroutine, but for Shutdown.
type Taken struct {
	loop    *Loop
	id      uint64
	room    Room
	arrived func(n int, err error) bool
	done    chan struct{} // has a value when it is followed no longer
	panic   string        // what ended that; "": nothing

	mu sync.Mutex // guards all below
	fd int        // -1: it is closed, or was given back
}

// Take takes a TCP connection out of the runtime's poller. What it returns stands for conn, which is closed without its
// peer's noticing it. nil: conn is none that can be taken, and stays what it is.
func (l *Loop) Take(conn net.Conn) *Taken {
	tcp := TCP(conn)
	if tcp == nil {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	t := &Taken{loop: l, fd: -1, done: make(chan struct{}, 1)}
	err = raw.Control(func(fd uintptr) {
		if second, failed := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); failed == nil {
			t.fd = second
		}
	})
	if err != nil || t.fd < 0 {
		return nil
	}
	if l.start() != nil {
		_ = unix.Close(t.fd)
		return nil
	}
	_ = tcp.Close() // the first descriptor alone
	return t
}

// Follow waits for what comes on the connection, and has arrived called with each read into room, or with what it
// failed with, until that returns false: in the goroutine of the loop, which waits for it, so that it must not. Follow
// panics if it does. An error says that it has not begun.
func (t *Taken) Follow(room Room, arrived func(n int, err error) (goOn bool)) error {
	t.room, t.arrived = room, arrived
	if err := t.loop.add(t); err != nil {
		return err
	}
	<-t.done
	t.room, t.arrived = nil, nil
	if t.panic != "" {
		panic(t.panic)
	}
	return nil
}

// Read waits for what comes, and reads it into p.
func (t *Taken) Read(p []byte) (n int, err error) {
	if failed := t.Follow(given(p), func(received int, reading error) bool {
		n, err = received, reading
		return false
	}); failed != nil {
		return 0, failed
	}
	return n, err
}

// given is room that is there.
type given []byte

func (g given) Take() []byte { return g }
func (given) Release()       {}

// GiveBack returns the connection as Of does, in the runtime's poller. arrived may call it, and return false then. After
// an error, as that there is no other descriptor, it is taken still.
func (t *Taken) GiveBack() (net.Conn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fd < 0 {
		return nil, net.ErrClosed
	}
	second, err := unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(second), "tcp")
	conn, err := net.FileConn(file)
	_ = file.Close() // of which conn has a copy
	if err != nil {
		return nil, err
	}
	t.closeLocked()
	return Of(conn), nil
}

// Close closes the connection, unless it was given back.
func (t *Taken) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fd < 0 {
		return net.ErrClosed
	}
	t.closeLocked()
	return nil
}

func (t *Taken) closeLocked() {
	t.loop.remove(t) // before its descriptor is another's
	t.loop.stop()
	_ = unix.Close(t.fd)
	t.fd = -1
}

// Shutdown ends the connection in both directions, so that what follows it hears of an end. Any goroutine may call it.
func (t *Taken) Shutdown() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fd >= 0 {
		_ = unix.Shutdown(t.fd, unix.SHUT_RDWR) // the peer may have ended it
	}
}

// ready reads what is there, and has it dealt with.
func (t *Taken) ready() (goOn bool) {
	defer func() {
		if caught := recover(); caught != nil {
			t.panic = fmt.Sprintf("%v\n%s", caught, debug.Stack())
			goOn = false
		}
	}()
	n, err := receive(uintptr(t.fd), t.room.Take())
	switch {
	case err == syscall.EAGAIN:
		t.room.Release()
		return true
	case err != 0:
		return t.arrived(0, &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", err)})
	case n == 0:
		return t.arrived(0, io.EOF)
	}
	return t.arrived(n, nil)
}

// start has the loop run, for one more connection.
func (l *Loop) start() (err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken == 0 {
		if l.epoll, err = NewEpoll(); err != nil {
			return err
		}
		l.conns = make(map[uint64]*Taken)
		go l.run(l.epoll)
	}
	l.taken++
	return nil
}

// stop is for when a connection is taken no longer. The last one ends the loop.
func (l *Loop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken--; l.taken == 0 {
		_ = l.epoll.Close() // which ends run
		l.epoll, l.conns = nil, nil
	}
}

// add begins to follow a connection.
func (l *Loop) add(t *Taken) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.fd < 0 {
		return net.ErrClosed
	}
	l.last++
	if err := l.epoll.Add(t.fd, unix.EPOLLIN, l.last); err != nil {
		return err
	}
	t.id = l.last
	l.conns[t.id] = t
	return nil
}

// remove ends following a connection, if it is followed.
func (l *Loop) remove(t *Taken) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, is := l.conns[t.id]; is {
		delete(l.conns, t.id)
		_ = l.epoll.Remove(t.fd) // it is there
	}
}

// run has what comes dealt with until the epoll is closed.
func (l *Loop) run(epoll *Epoll) {
	var events Events
	for {
		n, err := epoll.Wait(&events)
		if err != nil {
			return
		}
		if n >= shareFrom {
			l.share(events[:n])
			continue
		}
		for i := range n {
			l.handle(&events[i])
		}
	}
}

// handle has what came on a connection dealt with.
func (l *Loop) handle(event *unix.EpollEvent) {
	t := l.of(IDOf(event))
	if t != nil && !t.ready() {
		l.remove(t)
		t.done <- struct{}{}
	}
}

// shareFrom is how many connections one goroutine deals with, each in some 10 us, before others are to help it. An
// engine sends the tokens of all streams of a step at once.
const shareFrom = 16

// share has what came dealt with by several goroutines, and returns when it is.
func (l *Loop) share(events []unix.EpollEvent) {
	b := &batch{loop: l, events: events, size: int64(len(events)), done: make(chan struct{})}
	for range min(runtime.GOMAXPROCS(0)-1, len(events)*2/shareFrom) {
		go b.help()
	}
	b.help()
	<-b.done
}

// batch is what came at a time. Who helps late finds nothing left, and does not touch events, which are others by then.
type batch struct {
	loop   *Loop
	events []unix.EpollEvent
	size   int64
	next   atomic.Int64
	dealt  atomic.Int64
	done   chan struct{} // closed when all is dealt with
}

func (b *batch) help() {
	for i := b.next.Add(1) - 1; i < b.size; i = b.next.Add(1) - 1 {
		b.loop.handle(&b.events[i])
		if b.dealt.Add(1) == b.size {
			close(b.done)
		}
	}
}

// of is the connection with an ID, nil if it is followed no longer.
func (l *Loop) of(id uint64) *Taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[id]
}

// SendNow writes what a TCP connection takes of p at once, and returns how much that is: 0 also for one that failed,
// or is no TCP connection.
func SendNow(conn net.Conn, p []byte) (n int) {
	if c, is := conn.(interface{ sendNow(p []byte) int }); is {
		return c.sendNow(p)
	}
	tcp := TCP(conn)
	if tcp == nil {
		return 0
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = send(fd, p) })
	return n
}
