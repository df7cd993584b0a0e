package gateway

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watchClient calls gone once when the peer closes the connection, and costs
// nothing while it stays: the goroutine parks in the runtime's poller. It asks
// for POLLRDHUP instead of peeking for an end of file, so that a pipelined
// request in front of the end does not hide it, and so that TLS makes no
// difference. A client that closes only its sending side counts as gone, as it
// does for nginx and HAProxy.
//
// stop ends the watch and waits for it; it must be called before the connection
// is read again. It reports whether gone was called.
func watchClient(conn net.Conn, gone func()) (stop func() (fired bool)) {
	for { // the connection of a client, and under it perhaps TLS
		around, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = around.NetConn()
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return func() bool { return false }
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return func() bool { return false }
	}
	// The deadline for reading the request would end the wait.
	_ = conn.SetReadDeadline(time.Time{})
	left := false
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := raw.Read(func(fd uintptr) bool {
			left = peerClosed(int(fd))
			return left // false: wait for the next event on the socket
		})
		if err == nil && left {
			gone()
		}
	}()
	return func() bool {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // wakes the poller
		<-done
		_ = conn.SetReadDeadline(time.Time{})
		return left
	}
}

func peerClosed(fd int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	}
}
