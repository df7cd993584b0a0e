package enginehttp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"time"
)

// Transport is the HTTP/1.1 client side of all engine legs and probes. Of a request that gets no
// answer it says whether a living engine may have read it.
type Transport struct{ *http.Transport }

// NewTransport returns a transport that never follows a proxy of the environment, and drops idle
// connections before uvicorn does (5 s), since a POST on a connection that the engine is closing
// cannot be repeated safely. A connection keeps its buffers for as long as a stream is open: they hold
// a usual head, and the events of a stream; what is larger passes them by.
func NewTransport(connect time.Duration) *Transport {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 15 * time.Second}
	return &Transport{&http.Transport{
		Proxy: nil,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &engineConn{Conn: conn}, nil
		},
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 512,
		IdleConnTimeout:     4 * time.Second,
		DisableCompression:  true,
		ForceAttemptHTTP2:   false,
		WriteBufferSize:     1 << 10,
		ReadBufferSize:      4 << 10,
	}}
}

// ErrUnread says that a connection was lost and that no engine which lived then has read the
// whole request: it cannot be what the engine died of.
var ErrUnread = errors.New("the request was not read")

// RoundTrip sends a request. Its error is ErrUnread, with what happened, where no byte of an
// answer came and the connection
//
//   - was closed by the engine before the request was written to it: the engine had died, or
//     let an idle connection go, and nothing has noticed before;
//   - was reset. A process that has read all that was sent to it closes its connections in
//     order when it ends, and what reads as the end of the connection (EOF) is not known to be
//     unread. A kernel answers with a reset where a process ended with some of the request
//     unread, or before it came (Linux: tcp_close in net/ipv4/tcp.c).
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	var closed, answered atomic.Bool
	body, is := r.Body.(*Body)
	short := is && r.ContentLength > 0 && r.ContentLength <= shortBody && body.left() == r.ContentLength
	trace := &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) {
			closed.Store(c.Reused && isClosed(c.Conn))
			if conn, is := c.Conn.(*engineConn); is { // and not TLS over one
				conn.holdsHead = short
			}
		},
		GotFirstResponseByte: func() { answered.Store(true) },
	}
	resp, err := t.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err == nil {
		return resp, nil
	}
	reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if (reset || closed.Load()) && !answered.Load() && context.Cause(r.Context()) == nil {
		err = fmt.Errorf("%w: %w", ErrUnread, err)
	}
	return nil, err
}

// isClosed reports whether the other side of a connection on which nothing is awaited has closed
// or reset it, as the kernel knows it. Nothing is read of the connection.
func isClosed(conn net.Conn) (closed bool) {
	for { // ours, and over it perhaps TLS
		around, is := conn.(interface{ NetConn() net.Conn })
		if !is {
			break
		}
		conn = around.NetConn()
	}
	socket, is := conn.(syscall.Conn)
	if !is {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		closed = err == nil && n == 0 || errors.Is(err, syscall.ECONNRESET)
	})
	return closed || err != nil
}
