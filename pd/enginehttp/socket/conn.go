package socket

import (
	"errors"
	"net"
	"syscall"
)

// Of returns a connection by which conn is read and written. Where conn is no TCP connection that is conn itself.
func Of(conn net.Conn) net.Conn {
	tcp, is := conn.(*net.TCPConn)
	if !is {
		return conn
	}
	return newConn(tcp)
}

// TCP is the TCP connection that Of was given, nil if it was none.
func TCP(conn net.Conn) *net.TCPConn {
	switch c := conn.(type) {
	case *net.TCPConn:
		return c
	case interface{ tcp() *net.TCPConn }:
		return c.tcp()
	}
	return nil
}

// Room is memory for what is read. Take returns it, and the same until Release, which lets go of it: nothing was read
// into it.
type Room = interface {
	Take() []byte
	Release()
}

// ReadLate is Read into room that is taken once there is something to read: who waits for hours holds none. What else
// than a connection of Of is read as ever.
func ReadLate(conn net.Conn, room Room) (int, error) {
	late, is := conn.(interface{ readLate(Room) (int, error) })
	if !is {
		return conn.Read(room.Take())
	}
	return late.readLate(room)
}

// ErrUnasked says that something has come, or the end of the connection, before anything was asked.
var ErrUnasked = errors.New("the peer has sent what it was not asked for")

// asker is a connection of Of, but for those that package net reads.
type asker interface{ ask(p []byte) (int, error) }

// Asks reports whether a connection is one for Ask.
func Asks(conn net.Conn) bool {
	_, is := conn.(asker)
	return is
}

// Ask writes what is to be answered, and returns once something has come back, or whatever the next Read says has
// happened. A Write with a Read behind it finds nothing at first, which is a system call in vain. It writes as much as the
// socket takes at once, and waits only if that is all. It writes nothing after ErrUnasked. conn is one that Asks.
func Ask(conn net.Conn, p []byte) (n int, err error) {
	return conn.(asker).ask(p) //nolint:forcetypeassert // the caller knows it
}

// IsQuiet reports whether a connection is open with nothing to be read, and takes nothing of what there is. What is no
// socket it takes for quiet.
func IsQuiet(conn net.Conn) (is bool) {
	if c, ours := conn.(interface{ isQuiet() bool }); ours {
		return c.isQuiet()
	}
	below, isSocket := conn.(syscall.Conn)
	if !isSocket {
		return true
	}
	raw, err := below.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { is = isQuiet(fd) })
	return err == nil && is
}

// DelayAcks lets the kernel acknowledge every second piece of a stream, where pieces follow each other within 40 ms, in
// place of each as it is read: an acknowledgement is a packet, a tenth of the CPU of an event. A peer that holds small
// pieces back until the last one is acknowledged (Nagle's algorithm, which asyncio and uvloop turn off, and with them
// the engines' servers) waits for that once, 42 ms as measured: behind an acknowledgement that was late the kernel
// acknowledges at once again.
func DelayAcks(conn net.Conn) {
	if c, is := conn.(interface{ delayAcks() }); is {
		c.delayAcks()
	}
}
