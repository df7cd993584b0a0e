package http1

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

// shortRequest is how long a request may be, in bytes, that is copied into one piece and written by the
// goroutine that reads the answer. The buffer of a socket with nothing under way takes as much at once.
const shortRequest = 8 << 10

// outgoing is a request as it is written.
type outgoing struct {
	data   []byte    // the head, and a short body
	body   io.Reader // what is not in data; nil: nothing
	length int64     // of body; -1: it is sent in chunks
	close  bool      // the connection is not used again
}

var outgoings = sync.Pool{New: func() any { return &outgoing{data: make([]byte, 0, 2<<10)} }}

func (o *outgoing) release() {
	if cap(o.data) > 2*shortRequest {
		return
	}
	*o = outgoing{data: o.data[:0]}
	outgoings.Put(o)
}

// newOutgoing returns a request as it is written. It has read and closed a short body, and no other.
func newOutgoing(r *http.Request, closes bool) (*outgoing, error) {
	o := outgoings.Get().(*outgoing)
	o.close = closes || r.Close || hasToken(r.Header["Connection"], "close")
	o.body, o.length = r.Body, r.ContentLength
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		o.body, o.length = nil, 0
	case o.length == 0:
		o.length = -1 // as net/http has it: it was not said
	}
	err := o.appendHead(r)
	if err == nil {
		err = o.takeShortBody(r)
	}
	if err != nil {
		o.release()
		return nil, err
	}
	return o, nil
}

var (
	errMethod = errors.New("the request's method is not a token")
	errTarget = errors.New("a control character or space in the request's URL")
	errHeader = errors.New("a header of the request is not valid")
	errHost   = errors.New("the request's host is not valid")
)

func (o *outgoing) appendHead(r *http.Request) error {
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	if !isToken(method) {
		return errMethod
	}
	path := r.URL.RequestURI()
	for i := range len(path) {
		if path[i] <= ' ' || path[i] == 0x7f {
			return errTarget
		}
	}
	host, err := hostOf(r)
	if err != nil {
		return err
	}
	b := append(append(append(append(o.data, method...), ' '), path...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, host...), "\r\n"...)
	if _, is := r.Header["User-Agent"]; !is {
		b = append(b, "User-Agent: Go-http-client/1.1\r\n"...)
	}
	switch {
	case o.length > 0, o.length == 0 && (method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch):
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), o.length, 10), "\r\n"...)
	case o.length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if o.close && !hasToken(r.Header["Connection"], "close") {
		b = append(b, "Connection: close\r\n"...)
	}
	for name, values := range r.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue
		case "User-Agent":
			if len(values) == 0 || values[0] == "" {
				continue // which asks for none
			}
			values = values[:1]
		}
		if !isToken(name) {
			return errHeader
		}
		for _, value := range values {
			if !isValue(value) {
				return errHeader
			}
			b = append(append(append(append(b, name...), ": "...), textproto.TrimString(value)...), "\r\n"...)
		}
	}
	o.data = append(b, "\r\n"...)
	return nil
}

// hostOf is what a request says it is for.
func hostOf(r *http.Request) (string, error) {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	for i := range len(host) {
		if !hostBytes[host[i]] {
			return "", errHost
		}
	}
	if from := strings.IndexByte(host, '%'); from >= 0 && strings.HasPrefix(host, "[") { // a zone is of no concern to others
		if to := strings.IndexByte(host, ']'); to > from {
			host = host[:from] + host[to:]
		}
	}
	return host, nil
}

// takeShortBody copies a short body that is in memory behind the head.
func (o *outgoing) takeShortBody(r *http.Request) error {
	if o.length <= 0 || int64(len(o.data))+o.length > shortRequest {
		return nil
	}
	memory, is := r.Body.(*Body)
	switch {
	case is && memory.left() == o.length:
		for _, part := range memory.parts {
			o.data = append(o.data, part...)
		}
		memory.letGo()
	case !is && r.GetBody != nil: // so that it does not wait for anything
		head := len(o.data)
		o.data = append(o.data, make([]byte, o.length)...)
		if _, err := io.ReadFull(r.Body, o.data[head:]); err != nil {
			return wrongLength(err)
		}
		if n, _ := r.Body.Read(make([]byte, 1)); n > 0 {
			return errBodyTooLong
		}
	default:
		return nil
	}
	o.body = nil
	return r.Body.Close()
}

func wrongLength(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errBodyTooShort
	}
	return err
}

// upload is the writing of a request by a goroutine of its own.
type upload struct {
	done   chan struct{} // closed when err is set
	err    error
	ofBody bool // the fault is the body's
}

// maxWriteWait is how long the end of an answer waits for that of its request, before it gives the
// connection up. A server may have read all of it, and the writer not yet know.
const maxWriteWait = 50 * time.Millisecond

// isWritten reports whether the request is written by now.
func (u *upload) isWritten() bool {
	select {
	case <-u.done:
		return u.err == nil
	default:
		return false
	}
}

// finished reports whether all of the request was written.
func (u *upload) finished() bool {
	select {
	case <-u.done:
		return u.err == nil
	default:
	}
	late := time.NewTimer(maxWriteWait)
	defer late.Stop()
	select {
	case <-u.done:
		return u.err == nil
	case <-late.C:
		return false
	}
}

// failure is what the writing failed with, nil if nothing is known of it, and whether the body is at fault.
func (u *upload) failure() (err error, ofBody bool) { //nolint:revive,staticcheck // the second is of the error
	select {
	case <-u.done:
		return u.err, u.ofBody
	default:
		return nil, false
	}
}

// run writes a request and closes its body. Of a body that cannot be read the connection ends with it.
func (u *upload) run(c *conn, o *outgoing, r *http.Request, trace *httptrace.ClientTrace) {
	w := &watchedWriter{Conn: c.Conn}
	err := o.write(w, r)
	if closing := r.Body.Close(); err == nil {
		err = closing
	}
	u.err, u.ofBody = err, err != nil && w.err == nil
	o.release()
	wrote(trace, err)
	close(u.done)
	switch {
	case u.ofBody:
		c.abort()
	case err != nil: // an answer that came before is there to be read
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
	}
}

// watchedWriter is a connection that keeps what went wrong with it.
type watchedWriter struct {
	net.Conn
	err error
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

var copyBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// write writes the head and the body.
func (o *outgoing) write(w *watchedWriter, r *http.Request) error {
	if memory, is := r.Body.(*Body); is && memory.left() == o.length {
		if tcp := socket.TCP(w.Conn); tcp != nil {
			return o.writeParts(w, tcp, memory)
		}
	}
	buffer := copyBuffers.Get().(*[16 << 10]byte)
	defer copyBuffers.Put(buffer)
	if o.length < 0 {
		return o.writeChunks(w, buffer[:])
	}
	pending := append(buffer[:0], o.data...)
	for left := o.length; ; {
		if cap(pending) > len(buffer) { // the head was longer
			if _, err := w.Write(pending); err != nil {
				return err
			}
			pending = buffer[:0]
		}
		room := buffer[len(pending):]
		n, err := io.ReadFull(o.body, room[:min(int64(len(room)), left)])
		pending, left = pending[:len(pending)+n], left-int64(n)
		if err != nil && left > 0 {
			return wrongLength(err)
		}
		if _, err := w.Write(pending); err != nil {
			return err
		}
		pending = buffer[:0]
		if left == 0 {
			if n, _ := o.body.Read(make([]byte, 1)); n > 0 {
				return errBodyTooLong
			}
			return nil
		}
	}
}

// writeParts writes a head and a body from where they are, by one system call as far as the kernel takes it.
func (o *outgoing) writeParts(w *watchedWriter, tcp *net.TCPConn, b *Body) error {
	all := append(append(make(net.Buffers, 0, 1+len(b.parts)), o.data), b.parts...)
	b.parts = nil
	_, w.err = all.WriteTo(tcp)
	b.letGo()
	return w.err
}

func (o *outgoing) writeChunks(w io.Writer, buffer []byte) error {
	const sizeRoom, endRoom = len("ffffffff\r\n"), len("\r\n")
	if _, err := w.Write(o.data); err != nil {
		return err
	}
	for {
		n, err := o.body.Read(buffer[sizeRoom : len(buffer)-endRoom])
		if n > 0 {
			size := strconv.AppendInt(make([]byte, 0, sizeRoom), int64(n), 16)
			size = append(size, "\r\n"...)
			from := sizeRoom - len(size)
			copy(buffer[from:], size)
			copy(buffer[sizeRoom+n:], "\r\n")
			if _, err := w.Write(buffer[from : sizeRoom+n+endRoom]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			_, err = io.WriteString(w, "0\r\n\r\n")
			return err
		}
		if err != nil {
			return err
		}
	}
}

func wrote(trace *httptrace.ClientTrace, err error) {
	if trace == nil {
		return
	}
	if trace.WroteHeaders != nil {
		trace.WroteHeaders()
	}
	if trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
}
