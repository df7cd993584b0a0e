package gateway

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

// connections are what fasthttp takes for its listener. They are served here, each by a goroutine of its own: in one
// of fasthttp's a stream would hold for as long as it is open what fasthttp keeps of its request, and three times the
// stack.
type connections struct {
	*listener
	server *fasthttp.Server
}

// Accept serves connections until the listener ends, and returns none.
func (c connections) Accept() (net.Conn, error) {
	defer c.beginServing()()
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return nil, err
		}
		done := c.beginServing()
		go func() {
			defer done()
			conn.(*clientConn).serve(c.server)
		}()
	}
}

// serve answers the requests of a connection, by fasthttp, and relays their streams itself: a stream waits in the
// frame of this function, and of little else.
func (c *clientConn) serve(server *fasthttp.Server) {
	for {
		_ = server.ServeConn(c) // it has answered what was wrong
		r := c.stream
		if r == nil {
			return // it is closed
		}
		c.stream = nil
		whole := r.relay()
		c.handover.await()
		if !whole {
			c.awaitDeparture()
		}
		if !whole || r.closes || !c.awaitRequest() {
			_ = c.Close()
			return
		}
	}
}

// handover is that of a connection by fasthttp, which a goroutine of its own ends as it closes the connection.
type handover struct {
	underWay atomic.Bool
	ended    sync.WaitGroup
}

func (h *handover) begin() {
	h.ended.Add(1)
	h.underWay.Store(true)
}

// end reports whether one was under way.
func (h *handover) end() bool {
	ends := h.underWay.CompareAndSwap(true, false)
	if ends {
		h.ended.Done()
	}
	return ends
}

func (h *handover) await() { h.ended.Wait() }

// takeOver has a stream relayed by who serves the connection, once the handler of its request has returned.
func (c *clientConn) takeOver(ctx *fasthttp.RequestCtx, stream *relay) {
	c.stream = stream
	c.handover.begin()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(keepUnread)
}

// keepUnread keeps what fasthttp has read behind its request, of the next one, while it lets go of the connection.
func keepUnread(read net.Conn) {
	c := read.(interface{ UnsafeConn() net.Conn }).UnsafeConn().(*clientConn)
	if n, _ := read.Read(c.first[:]); n == 0 {
		return
	}
	rest, _ := io.ReadAll(read) // to what is read of the connection now: an end
	c.ahead = append([]byte{c.first[0]}, rest...)
}

// timeToReadWhy is for how long the connection of a stream that broke is left open behind the event that says why.
const timeToReadWhy = 250 * time.Millisecond

// awaitDeparture waits for a client to close its connection, but not for long. Clients that hear of the end of a
// connection before they have read what came drop that (Python's aiohttp, the fetch of Node): cut at once, they would
// show "terminated" in place of the error event.
func (c *clientConn) awaitDeparture() {
	if c.Conn.SetReadDeadline(time.Now().Add(timeToReadWhy)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes) // whatever ends it
	}
}

// awaitRequest waits for the next request behind a stream, and reports whether one comes. A connection that waits for
// it is as silent as a new one.
func (c *clientConn) awaitRequest() bool {
	c.receivedAny.Store(false)
	if len(c.ahead) > 0 {
		c.receivedAny.Store(true)
		return true
	}
	if c.SetReadDeadline(time.Now().Add(c.listener.cfg.ConnIdle)) != nil {
		return false
	}
	n, _ := c.Read(c.first[:])
	c.ahead = c.first[:n]
	return n > 0
}
