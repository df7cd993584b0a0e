package gateway

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

// listener hands out client connections that keep their own write deadlines, and
// outlives a shortage of descriptors: fasthttp ends on any error of Accept.
type listener struct {
	net.Listener
	cfg Config
	log *slog.Logger

	once     sync.Once // of Close
	closeErr error     // of Close

	mu      sync.Mutex // guards what follows
	conns   map[*clientConn]struct{}
	closing bool
	closed  bool
	clients *clientWatch // nil until a connection is watched, and when the last one is gone
}

func newListener(ln net.Listener, cfg Config, log *slog.Logger) *listener {
	return &listener{Listener: ln, cfg: cfg, log: log, conns: make(map[*clientConn]struct{})}
}

// Close ends Accept. fasthttp closes the listeners that it serves, and Shutdown all: the
// second of them gets no error.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.closeErr = l.Listener.Close()
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.forget(nil)
	})
	return l.closeErr
}

// forget drops a connection that is closed, and with the last one of a closed listener the watch on them.
func (l *listener) forget(c *clientConn) {
	l.mu.Lock()
	delete(l.conns, c)
	watch, last := l.clients, l.closed && len(l.conns) == 0
	if last {
		l.clients = nil
	}
	l.mu.Unlock()
	switch {
	case watch == nil:
	case last:
		watch.close()
	case c != nil:
		watch.remove(c.departure.watchID())
	}
}

// watchOf is the watch on connections, for one of them; nil for one that is closed.
func (l *listener) watchOf(c *clientConn) (w *clientWatch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.conns[c]; open && l.clients == nil {
		l.clients, err = startClientWatch()
	}
	return l.clients, err
}

const (
	acceptPause    = 10 * time.Millisecond
	maxAcceptPause = time.Second
)

// Accept waits out what passes by itself: descriptors that are used up, a client
// that left before it was accepted.
func (l *listener) Accept() (net.Conn, error) {
	for pause := acceptPause; ; pause = min(2*pause, maxAcceptPause) {
		conn, err := l.Listener.Accept()
		if err == nil {
			return l.track(conn), nil
		}
		if !outOfDescriptors(err) && !errors.Is(err, syscall.ECONNABORTED) {
			return nil, err
		}
		l.log.Error("cannot accept a connection", "error", err.Error())
		time.Sleep(pause)
	}
}

// outOfDescriptors reports a shortage of our own, which says nothing of the other side.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (l *listener) track(conn net.Conn) *clientConn {
	c := &clientConn{Conn: socket.Of(conn), listener: l, framing: framing{maxHead: l.cfg.MaxHeader, maxBody: l.cfg.MaxBody}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	if l.closing {
		_ = conn.Close() // its reader forgets it
	}
	return c
}

// closeSilent closes connections that never sent anything, and those that are still
// accepted: a drain would wait for them.
func (l *listener) closeSilent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	for c := range l.conns {
		if !c.receivedAny.Load() {
			_ = c.Conn.Close() // its reader forgets it
		}
	}
}

// clientConn is a client's connection. Writes have a deadline that moves on with them: one for a
// whole answer would cut long streams, one that is set and left cuts the next answer. What
// is read of it is well-formed HTTP, as far as framing judges.
type clientConn struct {
	net.Conn
	listener    *listener
	receivedAny atomic.Bool
	linger      atomic.Bool
	ended       atomic.Bool // the client sends nothing more, and more was to be read
	once        sync.Once
	departure   departure
	watched     *clientWatch // of who serves the connection; nil until it is watched
	writeBy     time.Time    // of the writer: the deadline that is set
	gathered    *gathered    // of the writer; nil: what is written goes out

	framing framing
	fault   *badMessage // with the next byte of the connection; nil while all is well
	refused *badMessage // wrong, once the message that it is wrong with was read so far
	broken  bool        // the parser got a byte that it does not take
}

// NetConn is the connection below, for code that needs its descriptor.
func (c *clientConn) NetConn() net.Conn { return c.Conn }

func (c *clientConn) Read(p []byte) (int, error) {
	if c.fault != nil {
		return c.refuse(p)
	}
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.receivedAny.Store(true)
	} else if errors.Is(err, io.EOF) {
		c.ended.Store(true)
	}
	passed, wrong := c.framing.follow(p[:n])
	if wrong == nil {
		return n, err
	}
	c.fault = wrong
	c.linger.Store(true)
	if passed > 0 {
		return passed, nil // it may be the end of a message that is well
	}
	return c.refuse(p)
}

// refuse ends what is read with an error. The parser closes a connection without an answer
// if nothing of a second request came before the error: it gets a byte that begins none.
func (c *clientConn) refuse(p []byte) (int, error) {
	c.refused = c.fault
	if c.framing.at <= inFields && !c.broken && len(p) > 0 {
		c.broken = true
		p[0] = 0
		return 1, nil
	}
	return 0, c.fault
}

// gathered is what was written and goes out by one call. A piece of a stream that is longer than fasthttp's buffer
// would take three, of which the last is the end of a line, and the end of a stream two more: each wakes the client.
type gathered struct {
	data []byte
	// joinsEnd: it waits for the line behind the last chunk; endIsNext: that is what is written next.
	joinsEnd, endIsNext bool
}

// gatheredRoom is how much is gathered, in bytes: what is in fasthttp's buffer, a piece of a usual length, and what
// stands around it.
const gatheredRoom = 1<<10 + coalesce + 1<<10

var gatherings = sync.Pool{New: func() any { return &gathered{data: make([]byte, 0, gatheredRoom)} }}

// lastSize is the size of the last chunk: fasthttp writes it, closes the stream, and writes the line behind it.
var (
	lastSize  = []byte("0\r\n")
	lastWhole = []byte("0\r\n\r\n")
)

// gather has what is written from now on wait for send.
func (c *clientConn) gather() {
	if c.gathered == nil {
		c.gathered = gatherings.Get().(*gathered)
	}
}

// joinLastChunk has what is written from now on wait for the line behind the last chunk of the stream.
func (c *clientConn) joinLastChunk() {
	c.gather()
	c.gathered.joinsEnd = true
}

// send writes what was gathered, if anything was.
func (c *clientConn) send() (err error) {
	g := c.gathered
	if g == nil {
		return nil
	}
	c.gathered = nil
	if len(g.data) > 0 {
		_, err = c.write(g.data)
	}
	*g = gathered{data: g.data[:0]}
	gatherings.Put(g)
	return err
}

// Write writes all of p, unless it is gathered.
func (c *clientConn) Write(p []byte) (int, error) {
	g := c.gathered
	if g == nil {
		return c.write(p)
	}
	if len(p) > cap(g.data)-len(g.data) {
		return c.writeBehind(g, p)
	}
	g.data = append(g.data, p...)
	if g.endIsNext || g.joinsEnd && bytes.HasSuffix(p, lastWhole) {
		if err := c.send(); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	g.endIsNext = g.joinsEnd && bytes.Equal(p, lastSize)
	return len(p), nil
}

// writeBehind writes what is too long to be gathered, and before it what was.
func (c *clientConn) writeBehind(g *gathered, p []byte) (int, error) {
	if len(g.data) > 0 {
		if _, err := c.write(g.data); err != nil {
			return 0, err
		}
		g.data = g.data[:0]
	}
	if g.endIsNext {
		_ = c.send() // of nothing: the stream is over
	}
	return c.write(p)
}

// write has its deadline anew once a sixteenth of the time is gone: setting it for each event of a stream
// costs as much as reading the event.
func (c *clientConn) write(p []byte) (int, error) {
	now, timeout := time.Now(), c.listener.cfg.WriteTimeout
	if deadline := now.Add(timeout); deadline.Sub(c.writeBy) > timeout/16 {
		if err := c.SetWriteDeadline(deadline); err != nil {
			return 0, err
		}
		c.writeBy = deadline
	}
	n, err := c.Conn.Write(p)
	if c.watched != nil {
		c.watched.look(now)
	}
	return n, err
}

// How long and how much is read of a client whose request was refused unread: closed
// at once, the answer would be lost to a client that writes before it reads.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 64 << 20
)

func (c *clientConn) Close() error {
	c.once.Do(func() {
		c.listener.forget(c)
		half, ok := c.Conn.(interface{ CloseWrite() error })
		if ok && c.linger.Load() && half.CloseWrite() == nil {
			_ = c.SetReadDeadline(time.Now().Add(lingerTime))
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes) // whatever ends it
		}
	})
	return c.Conn.Close()
}
