package gateway

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

// clientWatch notices which clients of a listener leave: one goroutine for all connections, which parks in
// the runtime's poller, and on a busy machine who writes to clients ([clientWatch.look]). It asks for EPOLLRDHUP
// instead of peeking for an end of file, so that a pipelined request in front of the end does not hide it, and so
// that TLS makes no difference. A client that closes only its sending side counts as gone, as it does for nginx
// and HAProxy.
type clientWatch struct {
	epoll  *socket.Epoll
	ended  chan struct{} // closed when follow has returned
	wrote  atomic.Int64  // when look was called last, as a time since listener.begun
	looked atomic.Int64  // when it did look

	mu    sync.Mutex // guards all below
	conns map[uint64]*clientConn
	last  uint64 // id that was given; a descriptor's number would be another connection's soon
}

func startClientWatch() (*clientWatch, error) {
	w, err := newClientWatch()
	if err == nil {
		go w.follow()
	}
	return w, err
}

func newClientWatch() (*clientWatch, error) {
	epoll, err := socket.NewEpoll()
	if err != nil {
		return nil, fmt.Errorf("watch clients: %w", err)
	}
	return &clientWatch{epoll: epoll, ended: make(chan struct{}), conns: make(map[uint64]*clientConn)}, nil
}

// close ends the watch and waits for it.
func (w *clientWatch) close() {
	_ = w.epoll.Close() // which ends follow
	<-w.ended
}

// follow reports connections whose peer closes them, until the watch is closed.
func (w *clientWatch) follow() {
	defer close(w.ended)
	var events socket.Events
	for {
		n, err := w.epoll.Wait(&events)
		if err != nil {
			return
		}
		for i := range n {
			w.report(socket.IDOf(&events[i]))
		}
	}
}

// departureConditions are what is asked for, once.
const departureConditions = unix.EPOLLRDHUP | unix.EPOLLET

// lookEvery is how often who writes to clients looks for those that have left.
const lookEvery = time.Millisecond

// look reports connections whose peer has closed them, unless that was looked for within lookEvery. The runtime
// asks its poller when a thread has nothing else to do, and otherwise every 10 ms (sysmon): while the gateway has
// no idle moment, follow would hear of a client only then. Where nobody has written within lookEvery it had one in all
// likelihood, and the look, a system call, is spared.
func (w *clientWatch) look(now time.Duration) {
	wrote := w.wrote.Load()
	w.wrote.Store(int64(now))
	if now-time.Duration(wrote) >= lookEvery {
		return
	}
	last := w.looked.Load()
	if now-time.Duration(last) < lookEvery || !w.looked.CompareAndSwap(last, int64(now)) {
		return
	}
	var events [8]unix.EpollEvent
	n, _ := w.epoll.Poll(events[:]) // it fails once the watch is closed
	for i := range n {
		w.report(socket.IDOf(&events[i]))
	}
}

func (w *clientWatch) report(id uint64) {
	w.mu.Lock()
	c := w.conns[id]
	w.mu.Unlock()
	if c != nil {
		c.departure.record()
	}
}

// add begins to watch a connection, which ends with its descriptor. 0: it has none.
func (w *clientWatch) add(c *clientConn) (id uint64, err error) {
	conn := c.Conn
	for { // under it perhaps TLS
		around, is := conn.(interface{ NetConn() net.Conn })
		if !is {
			break
		}
		conn = around.NetConn()
	}
	below, is := conn.(syscall.Conn)
	if !is {
		return 0, nil
	}
	raw, err := below.SyscallConn()
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	w.last++
	id = w.last
	w.conns[id] = c
	w.mu.Unlock()
	var failed error
	err = raw.Control(func(fd uintptr) { failed = w.epoll.Add(int(fd), departureConditions, id) })
	if err = errors.Join(err, failed); err != nil {
		w.remove(id)
		return 0, fmt.Errorf("watch a client: %w", err)
	}
	return id, nil
}

// remove forgets a connection that was closed.
func (w *clientWatch) remove(id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, id)
}

// departure is whether the client of a connection has left, and who wants to know.
type departure struct {
	mu   sync.Mutex // guards all below
	id   uint64     // with the watch; 0: it is not watched yet
	left bool
	who  waiter // nil: nobody wants to know
}

// waiter waits for an answer that its client may not wait for.
type waiter interface {
	// clientLeft is called once when the client has left, by any goroutine.
	clientLeft()
}

// record notes that the client has left. Who stops waiting waits for what is called here.
func (d *departure) record() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = true
	if d.who != nil {
		d.who.clientLeft()
		d.who = nil
	}
}

// watchFor tells who when the peer closes the connection, at once where it has, until stopWatch. It costs nothing while
// the peer stays, and from the second request on a connection next to nothing.
func (c *clientConn) watchFor(who waiter) {
	c.watch()
	d := &c.departure
	d.mu.Lock()
	d.who = who
	left := d.left
	d.mu.Unlock()
	if left {
		d.record()
	}
}

// stopWatch ends the wait, also for clientLeft to return, and reports whether the peer has left.
func (c *clientConn) stopWatch() (left bool) {
	d := &c.departure
	d.mu.Lock()
	defer d.mu.Unlock()
	d.who = nil
	return d.left
}

// watchID is the connection's with the watch, 0 without one.
func (d *departure) watchID() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.id
}

// watch lets the listener watch the connection, which is of the goroutine that serves it.
func (c *clientConn) watch() {
	d := &c.departure
	if d.watchID() != 0 {
		return
	}
	w, err := c.listener.watchOf(c)
	if err == nil && w != nil {
		var id uint64
		id, err = w.add(c) // which may report at once
		c.watched = w
		d.mu.Lock()
		d.id = id
		d.mu.Unlock()
	}
	if err != nil {
		c.listener.log.Warn("it will be noticed late when a client leaves", "error", err.Error())
	}
}
