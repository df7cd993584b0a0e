package proxybench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"sync"
	"time"

	"github.com/tidwall/gjson"
)

// client is one connection of a client to a proxy, kept from request to request.
type client struct {
	address string
	conn    net.Conn
	mu      sync.Mutex // guards conn against interrupt
	over    bool       // interrupted
	in      *bufio.Reader
	body    []byte // of a whole answer
	head    []byte // of a request
}

// requestTime is how long a request may take before it counts as lost.
const requestTime = 20 * time.Second

// errWrong is an answer that is not what was asked for.
var errWrong = errors.New("wrong answer")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errWrong, fmt.Sprintf(format, args...))
}

// dial connects where there is no connection.
func (c *client) dial() error {
	if c.conn != nil {
		return nil
	}
	conn, err := net.DialTimeout("tcp", c.address, 5*time.Second)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		_ = conn.Close()
		return errInterrupted
	}
	c.conn = conn
	if c.in == nil {
		c.in = bufio.NewReaderSize(conn, 4<<10)
	} else {
		c.in.Reset(conn)
	}
	return nil
}

// errInterrupted ends a client whose load is over.
var errInterrupted = errors.New("interrupted")

// interrupt ends what the client waits for; another goroutine may call it.
func (c *client) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// close gives the connection up.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// send writes a request.
func (c *client) send(p *prompt, m mark) error {
	if err := c.dial(); err != nil {
		return err
	}
	_ = c.conn.SetDeadline(time.Now().Add(requestTime))
	c.head = fmt.Appendf(c.head[:0], "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		c.address, len(p.before)+markLen+len(p.after))
	parts := net.Buffers{c.head, p.before, m[:], p.after}
	if _, err := parts.WriteTo(c.conn); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// reply is the head of an answer.
type reply struct {
	status  int
	length  int // -1: it is not known
	chunked bool
	closes  bool
}

func (c *client) readReply() (r reply, err error) {
	r.length = -1
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return r, fmt.Errorf("read the answer: %w", err)
	}
	if len(line) < 12 {
		return r, wrong("status line %q", line)
	}
	if r.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return r, wrong("status line %q", line)
	}
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return r, fmt.Errorf("read the answer: %w", err)
		}
		name, value, more := bytes.Cut(line, []byte(":"))
		if !more {
			return r, nil
		}
		switch value = bytes.TrimSpace(value); {
		case bytes.EqualFold(name, []byte("content-length")):
			r.length, _ = strconv.Atoi(string(value)) // what is no number fails as a length of 0
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			r.chunked = true
		case bytes.EqualFold(name, []byte("connection")):
			r.closes = bytes.EqualFold(value, []byte("close"))
		}
	}
}

// ask sends a request for a whole answer and holds it to what was asked for.
func (c *client) ask(p *prompt, m mark, tokens int) error {
	_, err := c.askAt(p, m, tokens)
	return err
}

// askAt is ask, and says when the request was sent.
func (c *client) askAt(p *prompt, m mark, tokens int) (sent time.Time, err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.send(p, m); err != nil {
		return sent, err
	}
	sent = time.Now()
	r, err := c.readReply()
	if err != nil {
		return sent, err
	}
	if c.body, err = c.readAll(r, c.body[:0]); err != nil {
		return sent, err
	}
	if r.closes {
		c.close()
	}
	return sent, checkWhole(r.status, c.body, m, tokens)
}

// readAll reads the body of an answer.
func (c *client) readAll(r reply, into []byte) ([]byte, error) {
	var from io.Reader
	switch {
	case r.chunked:
		from = httputil.NewChunkedReader(c.in)
	case r.length >= 0:
		from = io.LimitReader(c.in, int64(r.length))
	default:
		from = c.in
	}
	body := bytes.NewBuffer(into)
	if _, err := body.ReadFrom(from); err != nil {
		return into, fmt.Errorf("read the answer: %w", err)
	}
	if r.chunked {
		if _, err := c.in.Discard(2); err != nil {
			return into, fmt.Errorf("read the end of the answer: %w", err)
		}
	}
	if r.length > body.Len() {
		return into, wrong("%d bytes of %d", body.Len(), r.length)
	}
	return body.Bytes(), nil
}

// checkWhole holds a whole answer to its request: the mark, the text, the usage.
func checkWhole(status int, body []byte, m mark, tokens int) error {
	if status != 200 {
		return wrong("status %d: %.200s", status, body)
	}
	answer := gjson.ParseBytes(body)
	if text := answer.Get("choices.0.message.content").Str; len(text) < markLen || text[:markLen] != string(m[:]) {
		return wrong("the text is another request's: %.60q, not %s", text, m[:])
	}
	if got := answer.Get("usage.completion_tokens").Int(); got != int64(tokens) {
		return wrong("usage reports %d tokens, not %d", got, tokens)
	}
	if answer.Get("usage.prompt_tokens").Int() < 1 {
		return wrong("usage reports no prompt")
	}
	return nil
}

// stream is a streamed answer that is being read.
type stream struct {
	c      *client
	of     mark
	reply  reply
	lines  *bufio.Reader
	events int // of content
	usage  int // tokens, by the engine; -1: not reported
	done   bool
}

// open sends a request for a streamed answer and reads its head.
func (c *client) open(p *prompt, m mark) (*stream, error) {
	if err := c.send(p, m); err != nil {
		c.close()
		return nil, err
	}
	r, err := c.readReply()
	if err != nil {
		c.close()
		return nil, err
	}
	s := &stream{c: c, of: m, reply: r, lines: c.in, usage: -1}
	if r.status != 200 || !r.chunked {
		text, _ := c.readAll(r, nil)
		c.close()
		return nil, wrong("status %d, no stream: %.200s", r.status, text)
	}
	s.lines = bufio.NewReaderSize(httputil.NewChunkedReader(c.in), 4<<10)
	return s, nil
}

// next reads up to the next event of content, and reports false behind the last one.
func (s *stream) next() (bool, error) {
	for {
		line, err := s.lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return false, s.end()
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return false, fmt.Errorf("read the stream: %w", err)
		}
		content, check := s.read(line)
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a long event
			_, err = s.lines.ReadSlice('\n')
		}
		if check != nil || content {
			return content, check
		}
	}
}

// read judges one line of a stream: each event bears the mark of its request.
func (s *stream) read(line []byte) (content bool, err error) {
	data, is := bytes.CutPrefix(line, []byte("data: "))
	switch {
	case !is:
		return false, nil
	case bytes.HasPrefix(data, []byte("[DONE]")):
		s.done = true
		return false, nil
	case !bytes.Contains(data[:min(len(data), 160)], s.of[:]):
		return false, wrong("an event of another request: %.120q, not %s", data, s.of[:])
	}
	if at := bytes.Index(data, []byte(`"completion_tokens":`)); at >= 0 {
		s.usage = int(gjson.GetBytes(data, "usage.completion_tokens").Int())
		return false, nil
	}
	if at := bytes.Index(data, []byte(`"content":"`)); at >= 0 && data[min(len(data)-1, at+len(`"content":"`))] != '"' {
		s.events++
		return true, nil
	}
	return false, nil
}

// end judges a stream that has ended, and leaves the connection ready for the next request.
func (s *stream) end() error {
	switch {
	case !s.done:
		return wrong("a stream without its end")
	case s.usage != s.events:
		return wrong("usage reports %d tokens, %d came", s.usage, s.events)
	}
	if _, err := s.c.in.Discard(2); err != nil {
		return fmt.Errorf("read the end of the stream: %w", err)
	}
	if s.reply.closes {
		s.c.close()
	}
	return nil
}
