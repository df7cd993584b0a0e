package gateway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tandem-gateway/tandem/pd/api"
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

	closing  atomic.Bool // no connection takes another request; it is set with mu
	lastRead time.Time   // until when clients may send requests that they have begun; zero: that is not limited. It is set before closing

	begun time.Time // the beginning of its times
	most  int       // connections, beyond which those that wait for their clients make room for others

	mu      sync.Mutex // guards what follows
	conns   map[*clientConn]struct{}
	closed  bool
	clients *clientWatch // nil until a connection is watched, and when the last one is gone
	serving int          // goroutines of beginServing
	// noRoom is until when there is no room to be made: there was none when it was last looked for.
	noRoom time.Duration
	// served is closed once the listener is, and they have ended: then it isServed.
	served   chan struct{}
	isServed bool
}

func newListener(ln net.Listener, cfg Config, log *slog.Logger) *listener {
	return &listener{Listener: ln, cfg: cfg, log: log, conns: make(map[*clientConn]struct{}), served: make(chan struct{}), begun: time.Now(), most: maxDescriptors() / 2}
}

// Close ends Accept. fasthttp closes the listeners that it serves, and Shutdown all: the
// second of them gets no error.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.closeErr = l.Listener.Close()
		l.mu.Lock()
		l.closed = true
		l.checkServedLocked()
		l.mu.Unlock()
		l.forget(nil)
	})
	return l.closeErr
}

// beginServing counts a goroutine that accepts connections or serves one, until done is called. One that accepts counts
// those that it accepts before it is done.
func (l *listener) beginServing() (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.serving--
		l.checkServedLocked()
	}
}

// checkServedLocked tells who waits for it that all connections were served.
func (l *listener) checkServedLocked() {
	if !l.closed || l.serving > 0 || l.isServed {
		return
	}
	l.isServed = true
	close(l.served)
}

// awaitServed waits until no connection is served any more. It is for after Close.
func (l *listener) awaitServed(ctx context.Context) error {
	select {
	case <-l.served:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
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
		if outOfDescriptors(err) && l.makeRoom() {
			pause = acceptPause
		}
		time.Sleep(pause)
	}
}

// maxDescriptors is how many descriptors the process may have.
func maxDescriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(limit.Cur, math.MaxInt))
}

// leastWait is how long a connection that makes room has waited at least.
const leastWait = time.Second

// makeRoom closes connections that wait for their clients to send something, those that have waited longest, and
// reports whether there were any: else a client with many of them would keep all others from the gateway, and the
// gateway from its engines. It closes a sixteenth of all at once, so that they are seldom looked through, and leaves the
// sixteenth that has waited least: where nearly all have requests there is no room to be made. What came of late may be
// a request that nobody has had the time to read.
func (l *listener) makeRoom() bool {
	type waiting struct {
		conn *clientConn
		wait time.Duration
	}
	var longest []waiting
	l.mu.Lock()
	now := time.Since(l.begun)
	if now < l.noRoom {
		l.mu.Unlock()
		return false
	}
	for c := range l.conns {
		if wait := time.Duration(c.wait.Load()); wait > 0 && now-wait >= leastWait {
			longest = append(longest, waiting{c, wait})
		}
	}
	slices.SortFunc(longest, func(a, b waiting) int { return cmp.Compare(a.wait, b.wait) })
	some := 1 + len(l.conns)/16
	longest = longest[:min(some, max(0, len(longest)-some))]
	if len(longest) == 0 {
		l.noRoom = now + leastWait/8
	}
	for _, w := range longest {
		delete(l.conns, w.conn)
	}
	l.mu.Unlock()
	for _, w := range longest {
		_ = w.conn.Conn.Close() // its reader forgets it
	}
	if len(longest) > 0 {
		l.log.Warn("closed connections whose clients sent nothing, to make room", "connections", len(longest))
	}
	return len(longest) > 0
}

// outOfDescriptors reports a shortage of our own, which says nothing of the other side.
func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func (l *listener) track(conn net.Conn) *clientConn {
	c := &clientConn{Conn: socket.Of(conn), listener: l, framing: framing{maxHead: l.cfg.MaxHeader, maxBody: l.cfg.MaxBody}}
	if l.add(c) > l.most {
		l.makeRoom()
	}
	return c
}

// add keeps a connection that was accepted, and returns how many there are.
func (l *listener) add(c *clientConn) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	if l.closing.Load() {
		_ = c.Conn.Close() // its reader forgets it
	}
	return len(l.conns)
}

// maxSilence is how long a client may send nothing of a request that it has begun while the gateway drains: as long as
// packets that were lost take to be sent again, a few times over.
const maxSilence = 5 * time.Second

// closeSilent closes connections that never sent anything, and those that are still
// accepted: a drain would wait for them. Clients that have begun a request may send the rest, until lastRead at most,
// zero for no limit: one that stops has no answer to lose.
func (l *listener) closeSilent(lastRead time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastRead = lastRead
	l.closing.Store(true)
	for c := range l.conns {
		switch {
		case !c.receivedAny.Load():
			_ = c.Conn.Close() // its reader forgets it
		case c.wait.Load() > 0: // else its next Read sees that it is closing
			_ = c.Conn.SetReadDeadline(l.withinDrain(maxSilence))
		}
	}
}

// withinDrain is in so long, but not after lastRead. It is for after closeSilent.
func (l *listener) withinDrain(wait time.Duration) time.Time {
	until := time.Now().Add(wait)
	if !l.lastRead.IsZero() && l.lastRead.Before(until) {
		return l.lastRead
	}
	return until
}

// clientConn is a client's connection. Writes have a deadline that moves on with them: one for a
// whole answer would cut long streams, one that is set and left cuts the next answer. What
// is read of it is well-formed HTTP, as far as framing judges.
type clientConn struct {
	net.Conn
	listener    *listener
	receivedAny atomic.Bool
	wait        atomic.Int64 // since when it waits for its client to send, as a time since listener.begun; 0: it does not
	linger      atomic.Bool
	ended       atomic.Bool // the client sends nothing more, and more was to be read
	once        sync.Once
	departure   departure
	watched     *clientWatch  // of who serves the connection; nil until it is watched
	readBy      time.Time     // of the reader: the deadline of its next Read, which a drain may bring forward
	readUntil   time.Time     // the deadline of reads that the socket has, unless the gateway drains
	writeBy     time.Duration // of the writer: the deadline that is set, as a time since listener.begun
	stream      *relay        // that the handler of the last request left to who serves the connection; nil: none
	handover    handover      // of the connection from fasthttp
	ahead       []byte        // what was read, and is for the next reader
	first       [1]byte       // ahead, where it is the first byte of a request

	framing framing
	fault   *badMessage // with the next byte of the connection; nil while all is well
	refused *badMessage // wrong, once the message that it is wrong with was read so far
	broken  bool        // the parser got a byte that it does not take
}

// NetConn is the connection below, for code that needs its descriptor.
func (c *clientConn) NetConn() net.Conn { return c.Conn }

// Read reads what is ahead before the connection; while fasthttp lets go of it, there is nothing else.
func (c *clientConn) Read(p []byte) (int, error) {
	switch {
	case c.handover.underWay.Load():
		return 0, io.EOF
	case len(c.ahead) > 0:
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	case c.listener.closing.Load() && c.framing.isBetweenMessages():
		return 0, io.EOF
	}
	if c.fault != nil {
		return c.refuse(p)
	}
	if err := c.limitRead(); err != nil { // before wait is set: closeSilent sets an earlier one of who waits
		return 0, err
	}
	c.wait.Store(int64(max(1, time.Since(c.listener.begun)))) // before closing is looked at: closeSilent does that the other way round
	if c.listener.closing.Load() {
		if err := c.Conn.SetReadDeadline(c.sooner(c.listener.withinDrain(maxSilence))); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Read(p)
	c.wait.Store(0)
	if n > 0 {
		c.receivedAny.Store(true)
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) { // the second is TLS's
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

// leftAmid reports whether the client has left amid a request, and the API that this was for, nil where that is not
// known or there is none. It is for who serves the connection.
func (c *clientConn) leftAmid() (d *api.Dialect, left bool) {
	switch {
	case !c.ended.Load() || c.framing.isBetweenMessages():
		return nil, false
	case c.framing.at == inRequestLine: // its head is that of the request before
		return nil, true
	}
	return c.framing.head.dialect, true
}

// Write has its deadline anew once a sixteenth of the time is gone: setting it for each event of a stream
// costs as much as reading the event.
func (c *clientConn) Write(p []byte) (int, error) {
	begun, timeout := c.listener.begun, c.listener.cfg.WriteTimeout
	now := time.Since(begun) // which asks one clock, and not two as time.Now
	if deadline := now + timeout; deadline-c.writeBy > timeout/16 {
		if err := c.SetWriteDeadline(begun.Add(deadline)); err != nil {
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

// sendNow writes what the socket takes of p at once, where there is no TLS.
func (c *clientConn) sendNow(p []byte, now time.Time) (n int) {
	n = socket.SendNow(c.Conn, p)
	if c.watched != nil {
		c.watched.look(now.Sub(c.listener.begun))
	}
	return n
}

// How long and how much is read of a client whose request was refused unread: closed
// at once, the answer would be lost to a client that writes before it reads.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 64 << 20
)

// lingerUntil is until when the rest of what a client sends is read.
func (c *clientConn) lingerUntil() time.Time {
	if c.listener.closing.Load() {
		return c.listener.withinDrain(lingerTime)
	}
	return time.Now().Add(lingerTime)
}

// SetDeadline sets those of reads and writes.
func (c *clientConn) SetDeadline(t time.Time) error {
	c.readBy, c.readUntil, c.writeBy = t, t, 0 // the next write has its own
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline keeps the deadline until there is something to wait for: fasthttp sets one for the first byte of a
// request and another for the rest, which has mostly come with it.
func (c *clientConn) SetReadDeadline(t time.Time) error {
	c.readBy = t
	return nil
}

// limitRead gives the socket the deadline of a Read. One is set a little late, at most by a hundredth of any timeout, so
// that the next ones may be met by it: setting it costs as much as reading a request.
func (c *clientConn) limitRead() error {
	cfg := &c.listener.cfg
	slack := min(cfg.ReadTimeout, cfg.ConnIdle) / 100
	if late := c.readUntil.Sub(c.readBy); late >= 0 && late <= slack {
		return nil
	}
	until := c.readBy
	if !until.IsZero() {
		until = until.Add(slack)
	}
	c.readUntil = until
	return c.Conn.SetReadDeadline(until)
}

// sooner is a time, or the deadline of reads that is set, whichever comes first.
func (c *clientConn) sooner(t time.Time) time.Time {
	if !c.readBy.IsZero() && c.readBy.Before(t) {
		return c.readBy
	}
	return t
}

// Close closes the connection, unless it is fasthttp that lets go of it.
func (c *clientConn) Close() error {
	if c.handover.end() {
		return nil
	}
	c.once.Do(func() {
		c.listener.forget(c)
		half, ok := c.Conn.(interface{ CloseWrite() error })
		if ok && c.linger.Load() && half.CloseWrite() == nil {
			_ = c.Conn.SetReadDeadline(c.lingerUntil())
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes) // whatever ends it
		}
	})
	return c.Conn.Close()
}
