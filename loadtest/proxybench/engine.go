package proxybench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"sync"
	"time"
)

// The roles in which a mock engine answers.
const (
	roleBoth    = "both"
	rolePrefill = "prefill"
	roleDecode  = "decode"
)

// Server is one mock engine: where it listens, and what it takes itself for.
type Server struct {
	Address string // host:port
	Engine  string // vllm, vllm-0.32, vllm-events or sglang
	Role    string // both, prefill or decode
	Events  string // ZMQ address at which it publishes KV events; "": nowhere
}

// local is where this machine reaches it: host:port.
func (s Server) local() string {
	_, port, _ := net.SplitHostPort(s.Address)
	return net.JoinHostPort("127.0.0.1", port)
}

// Engines are mock engines in one process. They answer at once, by raw sockets, so that they are not
// what limits a proxy.
type Engines struct {
	ledger    *ledger
	bodies    sync.Pool
	tokenizer *tokenizer
}

func newEngines() *Engines {
	return &Engines{ledger: newLedger(), tokenizer: newTokenizer(), bodies: sync.Pool{New: func() any { return new([]byte) }}}
}

// ServeEngines serves mock engines, and the port by which the measurement controls them, until the
// context ends.
func ServeEngines(ctx context.Context, control string, servers []Server) error {
	e := newEngines()
	failed := make(chan error, 2*len(servers)+1)
	var config net.ListenConfig
	for _, s := range servers {
		listener, err := config.Listen(ctx, "tcp", s.Address)
		if err != nil {
			return fmt.Errorf("listen as an engine: %w", err)
		}
		defer func() { _ = listener.Close() }()
		var cache *kvCache
		if s.Events != "" {
			cache = newKVCache()
			go func() { failed <- cache.publish(ctx, s.Events) }()
		}
		go func() { failed <- e.accept(listener, s, cache) }()
	}
	go func() { failed <- e.serveControl(ctx, control) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// accept serves the connections of an engine. cache is nil where it publishes no KV events.
func (e *Engines) accept(listener net.Listener, as Server, cache *kvCache) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept as an engine: %w", err)
		}
		go func() {
			c := &engineConn{Engines: e, as: as, cache: cache, conn: conn, in: bufio.NewReaderSize(conn, 8<<10)}
			defer func() { _ = conn.Close() }()
			for c.exchange() == nil {
			}
		}()
	}
}

// engineConn is one connection of a proxy to an engine.
type engineConn struct {
	*Engines
	as      Server
	cache   *kvCache // nil: it publishes no KV events
	conn    net.Conn
	in      *bufio.Reader
	scratch []byte
	out     []byte
}

// exchange reads a request and answers it. An error ends the connection.
func (c *engineConn) exchange() error {
	head, err := readHead(c.in)
	if err != nil {
		return err
	}
	if head.expects {
		if _, err := c.conn.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return err
		}
	}
	buffer := c.bodies.Get().(*[]byte)
	body, err := readBody(c.in, head, (*buffer)[:0])
	if err != nil {
		return err
	}
	completes := bytes.HasSuffix(head.path, []byte("/completions")) && string(head.method) == "POST"
	var l leg
	if completes {
		at := time.Now()
		l, c.scratch = readLeg(body, c.scratch)
		c.ledger.arrived(&l, at)
		if c.cache != nil {
			l.prompt = c.tokenizer.tokensOf(body)
		}
	} else {
		c.out = c.page(c.out[:0], head, body)
	}
	*buffer = body
	c.bodies.Put(buffer) // nothing is kept of it while the answer goes out
	if completes {
		return c.complete(&l)
	}
	_, err = c.conn.Write(c.out)
	return err
}

// complete answers one leg of a request.
func (c *engineConn) complete(l *leg) error {
	if !l.marked {
		c.ledger.fault("request without its mark")
		return c.refuse("no mark")
	}
	var name string
	switch {
	case l.bootstrap != "":
		met, err := c.ledger.meet(l.bootstrap, c.as.Role, l.mark, c)
		if err != nil {
			return err
		}
		if !met {
			return c.refuse("the legs did not meet")
		}
		if c.as.Role == rolePrefill {
			l.answer = 1
		}
	case l.keeps:
		if l.answer != 1 {
			c.ledger.fault("prefill is asked for more than a token")
		}
		name = c.ledger.issue(l.mark, l.promptTokens())
	case l.reads:
		c.ledger.read(l.name, l.mark, l.blocks, l.behind)
	default:
		c.ledger.alone()
	}
	if c.cache != nil {
		c.cache.hold(l.prompt)
	}
	if l.stream {
		return c.streamAnswer(l)
	}
	c.scratch = appendWhole(c.scratch[:0], l, name)
	c.out = appendHead(c.out[:0], "200 OK", "application/json", len(c.scratch))
	both := net.Buffers{c.out, c.scratch}
	_, err := both.WriteTo(c.conn)
	return err
}

func (c *engineConn) refuse(why string) error {
	body := fmt.Sprintf(`{"error":{"message":%q,"type":"server_error","code":500}}`, why)
	c.out = append(appendHead(c.out[:0], "500 Internal Server Error", "application/json", len(body)), body...)
	_, err := c.conn.Write(c.out)
	return err
}

// burst is how many events go out in one write where they are not paced.
const burst = 64

var errLeft = errors.New("the reader has left")

// streamAnswer sends the events of an answer, each a chunk of its own as engines send them.
func (c *engineConn) streamAnswer(l *leg) error {
	c.out = append(c.out[:0], "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"...)
	c.out = appendChunk(c.out, func(b []byte) []byte { return appendRole(b, l) })
	gap := time.Duration(l.gap) * time.Microsecond
	next := time.Now()
	for i := range l.answer {
		c.out = appendChunk(c.out, func(b []byte) []byte { return appendEvent(b, l, i) })
		if gap == 0 && (i+1)%burst != 0 {
			continue
		}
		if err := c.flush(l); err != nil {
			return err
		}
		if gap > 0 && i+1 < l.answer {
			next = next.Add(gap)
			if err := c.pause(l, next); err != nil {
				return err
			}
		}
	}
	if l.usage {
		c.out = appendChunk(c.out, func(b []byte) []byte { return appendUsage(b, l) })
	}
	c.out = appendChunk(c.out, func(b []byte) []byte { return append(b, "data: [DONE]\n\n"...) })
	c.out = append(c.out, "0\r\n\r\n"...)
	return c.flush(l)
}

func (c *engineConn) flush(l *leg) error {
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	if err != nil {
		c.ledger.left(l.mark, time.Now())
	}
	return err
}

// pause waits for the time of the next event, and notices at once when the reader leaves meanwhile:
// nothing else is to be read before the answer has ended.
func (c *engineConn) pause(l *leg, until time.Time) error {
	_ = c.conn.SetReadDeadline(until)
	_, err := c.in.Peek(1)
	now := time.Now()
	_ = c.conn.SetReadDeadline(time.Time{})
	if isTimeout(err) {
		return nil
	}
	c.ledger.left(l.mark, now)
	return errLeft
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// head is the head of a request.
type head struct {
	method, path []byte
	length       int
	chunked      bool
	expects      bool // 100 Continue
}

// readHead reads the head of a request, as far as it matters here.
func readHead(in *bufio.Reader) (h head, err error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return h, err
	}
	method, rest, _ := bytes.Cut(line, []byte(" "))
	path, _, _ := bytes.Cut(rest, []byte(" "))
	path, _, _ = bytes.Cut(path, []byte("?"))
	h.method, h.path = bytes.Clone(method), bytes.Clone(path)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return h, err
		}
		name, value, more := bytes.Cut(line, []byte(":"))
		if !more {
			return h, nil
		}
		switch value = bytes.TrimSpace(value); {
		case bytes.EqualFold(name, []byte("content-length")):
			if h.length, err = strconv.Atoi(string(value)); err != nil {
				return h, fmt.Errorf("content-length: %w", err)
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			h.chunked = true
		case bytes.EqualFold(name, []byte("expect")):
			h.expects = true
		}
	}
}

// readBody reads the body of a request into a buffer.
func readBody(in *bufio.Reader, h head, into []byte) ([]byte, error) {
	if h.chunked {
		body := bytes.NewBuffer(into)
		if _, err := body.ReadFrom(httputil.NewChunkedReader(in)); err != nil {
			return nil, err
		}
		_, err := in.Discard(2) // the line behind the last chunk
		return body.Bytes(), err
	}
	if cap(into) < h.length {
		into = make([]byte, h.length)
	}
	into = into[:h.length]
	_, err := io.ReadFull(in, into)
	return into, err
}
