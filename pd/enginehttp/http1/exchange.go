package http1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

const maxHead = 64 << 10

// exchange is a request and its answer on a connection.
type exchange struct {
	t        *Transport
	c        *conn
	ctx      context.Context //nolint:containedctx // of the request, which the body belongs to
	trace    *httptrace.ClientTrace
	watch    watch
	upload   *upload // nil: the request is written
	asks     bool    // it writes the request and waits for the answer at once
	answered bool    // something of an answer was there
}

// run sends a request and reads the head of its answer, of which b becomes the body. After an error the connection is of
// no use; nothing was sent where that is socket.ErrUnasked, and o is there still.
func (b *body) run(r *http.Request, o *outgoing) (*http.Response, error) {
	keep := !o.close
	nothingWritten, writing := b.send(r, o)
	if errors.Is(writing, socket.ErrUnasked) {
		return nil, writing
	}
	keep = keep && writing == nil
	in := takeBuffer()
	resp, how, err := b.receive(r, in)
	if err == nil {
		keep = keep && !resp.Close
		b.begin(resp, how, in, keep)
		return resp, nil
	}
	in.release()
	if b.upload != nil && !b.answered && !b.upload.finished() {
		fault, ofBody := b.upload.failure()
		if ofBody {
			return nil, fault
		}
		writing = fault
	}
	if writing != nil && !b.answered { // the kernel says once that a connection was reset
		err = writing
	}
	return nil, &Error{Err: err, Reused: b.c.used, Answered: b.answered, nothingWritten: nothingWritten}
}

// send writes a request that is in one piece, and has any other written.
func (e *exchange) send(r *http.Request, o *outgoing) (nothingWritten bool, err error) {
	if o.body != nil {
		e.upload = &upload{done: make(chan struct{})}
		go e.upload.run(e.c, o, r, e.trace)
		return false, nil
	}
	n, err := e.write(o.data)
	if errors.Is(err, socket.ErrUnasked) {
		return true, err
	}
	o.release()
	wrote(e.trace, err)
	if err != nil { // an answer that came before is there to be read
		_ = e.c.SetReadDeadline(time.Now().Add(time.Second))
	}
	return n == 0, err
}

// write writes a request, and waits for the answer where it asks. A new connection that something has come by is written
// to all the same, and then read.
func (e *exchange) write(data []byte) (n int, err error) {
	if e.asks {
		n, err = socket.Ask(e.c.Conn, data)
		if n == len(data) || err != nil && (e.c.used || !errors.Is(err, socket.ErrUnasked)) {
			return n, err
		}
	}
	more, err := e.c.Write(data[n:])
	return n + more, err
}

// receive reads the head of the answer.
func (e *exchange) receive(r *http.Request, in *buffer) (_ *http.Response, how framing, err error) {
	limit := e.t.MaxHead
	if limit == 0 {
		limit = maxHead
	}
	for {
		head, err := in.readHead(firstByte{e}, limit)
		if err != nil {
			if errors.Is(err, io.EOF) && !e.answered {
				err = errUnanswered
			}
			return nil, 0, cut(err)
		}
		resp, err := readResponse(head, r)
		if err != nil {
			return nil, 0, err
		}
		if resp.StatusCode >= 200 {
			how, err = frame(resp, r.Method)
			resp.TLS = e.c.state
			return resp, how, err
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return nil, 0, ProtocolError("another protocol, which was not asked for")
		}
		limit -= len(head)
		if err := e.informational(resp); err != nil {
			return nil, 0, err
		}
	}
}

func (e *exchange) informational(resp *http.Response) error {
	if e.trace == nil {
		return nil
	}
	if resp.StatusCode == http.StatusContinue && e.trace.Got100Continue != nil {
		e.trace.Got100Continue()
	}
	if e.trace.Got1xxResponse != nil {
		return e.trace.Got1xxResponse(resp.StatusCode, textproto.MIMEHeader(resp.Header))
	}
	return nil
}

// readResponse reads a head, without what it says of the body. It changes head.
func readResponse(head []byte, r *http.Request) (*http.Response, error) {
	line, fields := head, head[len(head):]
	for i, b := range head {
		if b == '\n' {
			line, fields = head[:i-1], head[i+1:len(head)-2]
			break
		}
	}
	s, err := readStatus(line)
	if err != nil {
		return nil, err
	}
	answer := new(answerHead)
	header, err := readFields(fields, answer.values[:0])
	if err != nil {
		return nil, err
	}
	answer.resp = http.Response{StatusCode: s.code, Status: statusText(line), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: s.minor, Header: header, Request: r}
	if s.minor == 0 {
		answer.resp.Proto = "HTTP/1.0"
	}
	return &answer.resp, nil
}

// answerHead is a response with room for the values of its fields, of which a usual one has no more. The body, which may
// take hours longer, is not in it.
type answerHead struct {
	resp   http.Response
	values [6]string
}

// statusText is a status with its reason.
func statusText(line []byte) string {
	text := line[len("HTTP/1.1 "):]
	if string(text) == "200 OK" {
		return "200 OK"
	}
	return string(text)
}

// firstByte reads the connection of an exchange, and notes when something of an answer is there.
type firstByte struct{ e *exchange }

func (f firstByte) Read(p []byte) (int, error) {
	e := f.e
	n, err := e.c.Read(p)
	if n > 0 && !e.answered {
		e.answered = true
		if e.trace != nil && e.trace.GotFirstResponseByte != nil {
			e.trace.GotFirstResponseByte()
		}
	}
	return n, err
}

// end gives the connection back, or closes it.
func (e *exchange) end(keep bool) {
	keep = e.watch.stop() && keep && (e.upload == nil || e.upload.finished()) && e.c.giveBack() == nil
	if keep {
		e.c.used = true
		keep = e.t.idle.put(e.c, e.t)
		if e.trace != nil && e.trace.PutIdleConn != nil {
			e.trace.PutIdleConn(nil)
		}
	}
	if !keep {
		e.c.close()
	}
}
