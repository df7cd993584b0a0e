package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

// key names the connections that may serve the same requests.
type key struct {
	tls     bool
	address string // host:port, as it is dialled
}

// conn is a connection, which one exchange uses at a time.
type conn struct {
	net.Conn          // TLS, or the socket
	socket   net.Conn // below TLS
	to       key
	used     bool      // it has served a request
	since    time.Time // it is idle
	state    *tls.ConnectionState

	mu    sync.Mutex    // guards what stands for the connection, for abort
	taken *socket.Taken // stands for it while a loop reads it; else nil. It is set by who reads the connection

	aborted   atomic.Bool
	abortFunc func() // c.abort, made once
	byte      [1]byte
}

// connection returns a connection that is idle, or a new one. Whether one that may ask is quiet is seen when it does.
func (t *Transport) connection(ctx context.Context, to key, r *http.Request, trace *httptrace.ClientTrace, o *outgoing) (*conn, error) {
	if trace != nil && trace.GetConn != nil {
		trace.GetConn(to.address)
	}
	for {
		c := t.idle.take(to, t.IdleTimeout)
		if c == nil {
			break
		}
		if c.mayAsk(o, trace) || c.isQuiet() {
			got(trace, c)
			return c, nil
		}
		c.abort()
	}
	dial := t.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	dialed, err := dial(ctx, "tcp", to.address)
	if err != nil {
		return nil, err
	}
	dialed = socket.Of(dialed)
	c := &conn{Conn: dialed, socket: dialed, to: to}
	if to.tls {
		if err := c.handshake(ctx, t.tlsConfig(), r.URL.Hostname(), trace); err != nil {
			_ = dialed.Close()
			return nil, err
		}
	}
	c.abortFunc = c.abort
	got(trace, c)
	return c, nil
}

func got(trace *httptrace.ClientTrace, c *conn) {
	if trace == nil || trace.GotConn == nil {
		return
	}
	info := httptrace.GotConnInfo{Conn: c.Conn, Reused: c.used, WasIdle: c.used}
	if c.used {
		info.IdleTime = time.Since(c.since)
	}
	trace.GotConn(info)
}

// tlsConfig is that of one connection, which may change it.
func (t *Transport) tlsConfig() *tls.Config {
	if t.TLSClientConfig != nil {
		if cfg := t.TLSClientConfig(); cfg != nil {
			return cfg.Clone()
		}
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}

func (c *conn) handshake(ctx context.Context, cfg *tls.Config, host string, trace *httptrace.ClientTrace) (err error) {
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	cfg.NextProtos = []string{"http/1.1"}
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	over := tls.Client(c.socket, cfg)
	err = over.HandshakeContext(ctx)
	state := over.ConnectionState()
	if trace != nil && trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(state, err)
	}
	c.Conn, c.state = over, &state
	return err
}

// abort closes the connection, whoever reads or writes it, and waits until they do not any more.
func (c *conn) abort() {
	if open := c.hangUp(); open != nil {
		_ = open.Close()
	}
}

// hangUp has the server hear at once that nothing more is wanted, and waits for nobody: a descriptor that is closed
// while a goroutine waits for it lasts until that one has run, which takes milliseconds on a busy machine. It returns
// what is still to be closed, nil where who follows the connection does it.
func (c *conn) hangUp() (open net.Conn) {
	c.aborted.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken != nil {
		c.taken.Shutdown()
		return nil
	}
	if half, is := c.socket.(interface{ CloseWrite() error }); is {
		_ = half.CloseWrite() // it may be closed already
	}
	return c.socket
}

// close closes the connection, which nobody else uses.
func (c *conn) close() {
	if !c.closeTaken() {
		_ = c.Conn.Close() // TLS says goodbye
	}
}

// closeTaken closes the connection if a loop has it, and does not read it now.
func (c *conn) closeTaken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil {
		return false
	}
	_ = c.taken.Close()
	c.taken = nil
	return true
}

// Read reads nothing of a connection that is aborted: some servers answer one that is half closed, with an empty
// success.
func (c *conn) Read(p []byte) (int, error) {
	from := io.Reader(c.Conn)
	if c.taken != nil {
		from = c.taken
	}
	n, err := from.Read(p)
	if c.aborted.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// readLate is Read into room that is taken once something is there.
func (c *conn) readLate(room socket.Room) (int, error) {
	if c.taken != nil {
		return c.Read(room.Take())
	}
	n, err := socket.ReadLate(c.Conn, room)
	if c.aborted.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// take has a loop follow the connection until it is given back. nil: it cannot, or the connection is aborted.
func (c *conn) take(loop *socket.Loop) *socket.Taken {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil && !c.to.tls && !c.aborted.Load() {
		c.taken = loop.Take(c.socket)
	}
	return c.taken
}

// giveBack is for after a loop followed the connection; it does nothing if none did. After an error it is read by the
// loop still.
func (c *conn) giveBack() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken == nil {
		return nil
	}
	if c.aborted.Load() {
		return net.ErrClosed
	}
	again, err := c.taken.GiveBack()
	if err != nil {
		return err
	}
	c.Conn, c.socket, c.taken = again, again, nil
	return nil
}

// mayAsk reports whether a request may be written and its answer waited for at once: it is in one piece, and nobody is
// told when the one is over and the other begins.
func (c *conn) mayAsk(o *outgoing, trace *httptrace.ClientTrace) bool {
	return o.body == nil && trace == nil && socket.Asks(c.Conn)
}

var longAgo = time.Unix(1, 0)

// isQuiet reports whether an idle connection can take a request: it is open, and the server has sent
// nothing that it was not asked for.
func (c *conn) isQuiet() bool {
	if c.to.tls { // it may have read more than the answer
		if c.SetReadDeadline(longAgo) != nil {
			return false
		}
		n, err := c.Read(c.byte[:])
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.SetReadDeadline(time.Time{}) != nil {
			return false
		}
	}
	return socket.IsQuiet(c.socket)
}

// header values that list tokens
func hasToken(values []string, token string) bool {
	return slices.ContainsFunc(values, func(v string) bool { return listsToken(v, token) })
}

func bodyAllowed(method string, status int) bool {
	return method != http.MethodHead && status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
