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
	t      *Transport
	c      *conn
	ctx    context.Context //nolint:containedctx // of the request, which the body belongs to
	trace  *httptrace.ClientTrace
	stop   func() bool // the watch on ctx; false: it has ended the connection
	upload *upload     // nil: the request is written
	asks   bool        // it writes the request and waits for the answer at once
}

// run sends a request and reads the head of its answer. After an error the connection is of no use; nothing was sent
// where that is socket.ErrUnasked, and o is there still.
func (e *exchange) run(r *http.Request, o *outgoing) (*http.Response, error) {
	keep := !o.close
	nothingWritten, writing := e.send(r, o)
	if errors.Is(writing, socket.ErrUnasked) {
		return nil, writing
	}
	keep = keep && writing == nil
	in := takeBuffer()
	resp, how, answered, err := e.receive(r, in)
	if err == nil {
		keep = keep && !resp.Close
		e.begin(resp, how, in, keep)
		return resp, nil
	}
	in.release()
	if e.upload != nil && !answered && !e.upload.finished() {
		fault, ofBody := e.upload.failure()
		if ofBody {
			return nil, fault
		}
		writing = fault
	}
	if writing != nil && !answered { // the kernel says once that a connection was reset
		err = writing
	}
	return nil, &Error{Err: err, Reused: e.c.used, Answered: answered, nothingWritten: nothingWritten}
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
func (e *exchange) receive(r *http.Request, in *buffer) (_ *http.Response, how framing, answered bool, err error) {
	limit := e.t.MaxHead
	if limit == 0 {
		limit = maxHead
	}
	from := &firstByte{conn: e.c, trace: e.trace}
	for {
		head, err := in.readHead(from, limit)
		if err != nil {
			if errors.Is(err, io.EOF) && !from.answered {
				err = errUnanswered
			}
			return nil, 0, from.answered, cut(err)
		}
		resp, err := readResponse(head, r)
		if err != nil {
			return nil, 0, true, err
		}
		if resp.StatusCode >= 200 {
			how, err = frame(resp, r.Method)
			resp.TLS = e.c.state
			return resp, how, true, err
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			return nil, 0, true, ProtocolError("another protocol, which was not asked for")
		}
		limit -= len(head)
		if err := e.informational(resp); err != nil {
			return nil, 0, true, err
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
	header, err := readFields(fields)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{StatusCode: s.code, Status: statusText(line), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: s.minor, Header: header, Request: r}
	if s.minor == 0 {
		resp.Proto = "HTTP/1.0"
	}
	return resp, nil
}

// statusText is a status with its reason.
func statusText(line []byte) string {
	text := line[len("HTTP/1.1 "):]
	if string(text) == "200 OK" {
		return "200 OK"
	}
	return string(text)
}

// firstByte is a connection that notes when something of an answer is there.
type firstByte struct {
	*conn
	trace    *httptrace.ClientTrace
	answered bool
}

func (f *firstByte) Read(p []byte) (int, error) {
	n, err := f.conn.Read(p)
	if n > 0 && !f.answered {
		f.answered = true
		if f.trace != nil && f.trace.GotFirstResponseByte != nil {
			f.trace.GotFirstResponseByte()
		}
	}
	return n, err
}

// end gives the connection back, or closes it.
func (e *exchange) end(keep bool) {
	keep = e.stop() && keep && (e.upload == nil || e.upload.finished()) && e.c.giveBack() == nil
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
