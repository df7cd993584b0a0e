//go:build !race && linux && (amd64 || arm64)

package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// conn is a TCP connection. One that is not to be had as a descriptor is read and written by package net.
type conn struct {
	*net.TCPConn
	raw      syscall.RawConn
	in, out  transfer
	receives func(fd uintptr) (done bool) // in.receive, made once
	sends    func(fd uintptr) (done bool) // out.send, made once
	sendsNow func(fd uintptr)             // out.sendNow, made once
	asks     func(fd uintptr) (done bool) // out.ask, made once
	looks    func(fd uintptr)             // out.look, made once
}

// transfer is one Read or Write.
type transfer struct {
	mu   sync.Mutex // held for all of it
	p    []byte
	room Room // nil: p is given
	n    int
	fail syscall.Errno // 0: none

	unasked bool // something was there to be read, or the end of the connection
}

func newConn(tcp *net.TCPConn) net.Conn {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return tcp
	}
	c := &conn{TCPConn: tcp, raw: raw}
	c.receives, c.sends, c.sendsNow, c.asks, c.looks = c.in.receive, c.out.send, c.out.sendNow, c.out.ask, c.out.look
	return c
}

func (c *conn) tcp() *net.TCPConn { return c.TCPConn }

// Read reads what is there, or waits for it.
func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return c.TCPConn.Read(p)
	}
	t := &c.in
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n, t.fail = p, 0, 0
	err := c.raw.Read(c.receives)
	t.p = nil
	if err != nil || t.fail != 0 {
		return 0, c.failure(err, t.fail, "read")
	}
	if t.n == 0 {
		return 0, io.EOF
	}
	return t.n, nil
}

// readLate is Read into room.
func (c *conn) readLate(room Room) (int, error) {
	t := &c.in
	t.mu.Lock()
	defer t.mu.Unlock()
	t.room, t.n, t.fail = room, 0, 0
	err := c.raw.Read(c.receives)
	t.room, t.p = nil, nil
	if err != nil || t.fail != 0 {
		return 0, c.failure(err, t.fail, "read")
	}
	if t.n == 0 {
		return 0, io.EOF
	}
	return t.n, nil
}

// delayAcks is DelayAcks.
func (c *conn) delayAcks() {
	_ = c.raw.Control(func(fd uintptr) { // without it acknowledgements cost what they did
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_QUICKACK, 0)
	})
}

// Write writes all of p, and waits where the socket takes no more of it.
func (c *conn) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return c.TCPConn.Write(p)
	}
	t := &c.out
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n, t.fail = p, 0, 0
	err := c.raw.Write(c.sends)
	t.p = nil
	if err != nil || t.fail != 0 {
		return t.n, c.failure(err, t.fail, "write")
	}
	return t.n, nil
}

// sendNow is SendNow.
func (c *conn) sendNow(p []byte) int {
	t := &c.out
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n = p, 0
	_ = c.raw.Control(c.sendsNow) // it fails once the connection is closed
	t.p = nil
	return t.n
}

// ask is Ask.
func (c *conn) ask(p []byte) (int, error) {
	t := &c.out
	t.mu.Lock()
	defer t.mu.Unlock()
	t.p, t.n, t.fail, t.unasked = p, 0, 0, false // the connection may be closed, and ask not called
	_ = c.raw.Read(c.asks)                       // the next Read fails of the same
	t.p = nil
	switch {
	case t.unasked:
		return 0, ErrUnasked
	case t.fail != 0:
		return 0, c.failure(nil, t.fail, "write")
	}
	return t.n, nil
}

// isQuiet is IsQuiet.
func (c *conn) isQuiet() bool {
	t := &c.out
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.raw.Control(c.looks) == nil && !t.unasked
}

// receive reads once. It is false where nothing is there yet.
func (t *transfer) receive(fd uintptr) (done bool) {
	if t.room != nil {
		t.p = t.room.Take()
	}
	n, err := receive(fd, t.p)
	switch err {
	case 0:
		t.n = n
	case syscall.EAGAIN:
		if t.room != nil {
			t.p = nil
			t.room.Release()
		}
		return false
	default:
		t.fail = err
	}
	return true
}

// send writes what is left. It is false where the socket takes no more of it yet.
func (t *transfer) send(fd uintptr) (done bool) {
	for t.n < len(t.p) {
		n, err := send(fd, t.p[t.n:])
		switch err {
		case 0:
			t.n += n
		case syscall.EAGAIN:
			return false
		default:
			t.fail = err
			return true
		}
	}
	return true
}

// sendNow writes once.
func (t *transfer) sendNow(fd uintptr) {
	if n, err := send(fd, t.p); err == 0 {
		t.n = n
	}
}

// look sees whether something has come unasked.
func (t *transfer) look(fd uintptr) { t.unasked = !isQuiet(fd) }

// ask writes once, unless something is there to be read, and is false where all was taken. It is called again once
// something is there: what has come since it was called for the first time is not missed, and nothing had come before.
func (t *transfer) ask(fd uintptr) (done bool) {
	if t.p == nil {
		return true
	}
	p := t.p
	t.p = nil
	if t.look(fd); t.unasked {
		return true
	}
	n, err := send(fd, p)
	switch err {
	case 0:
		t.n = n
	case syscall.EAGAIN: // Write waits
	default:
		t.fail = err
	}
	return t.n < len(p)
}

// failure is what a Read or Write failed with, as package net says it: an error of waiting, or of a system call. It is
// apart from those, in whose frames a stream waits for hours.
//
//go:noinline
func (c *conn) failure(waiting error, call syscall.Errno, op string) error {
	if waiting == nil {
		return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(op, call)}
	}
	var failed *net.OpError
	if errors.As(waiting, &failed) {
		failed.Op = op // which is of this call alone
	}
	return waiting
}
