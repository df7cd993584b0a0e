package enginehttp

import (
	"bytes"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
)

// Body is the body of a request in memory, which it lets go of as it is sent: a stream's answer may take
// hours longer. It is sent once.
type Body struct {
	short []byte      // all of it, where a copy costs less than a second write
	parts net.Buffers // else
}

// shortBody is how long a body may be, in bytes, that is put together, to be written with the head at once.
const shortBody = 7 << 10

// NewBody returns the body of a request that consists of parts, of so many bytes together.
func NewBody(parts iter.Seq[[]byte], length int) *Body {
	b := &Body{}
	if length <= shortBody {
		b.short = make([]byte, 0, length)
	}
	for part := range parts {
		if b.short != nil {
			b.short = append(b.short, part...)
		} else {
			b.parts = append(b.parts, part)
		}
	}
	return b
}

// Read reads what is left.
func (b *Body) Read(p []byte) (int, error) {
	if b.short == nil {
		return b.parts.Read(p)
	}
	if len(b.short) == 0 {
		return 0, io.EOF
	}
	n := copy(p, b.short)
	b.short = b.short[n:]
	return n, nil
}

// Close lets nothing go: net/http may close a body while another goroutine sends it.
func (b *Body) Close() error { return nil }

// letGo makes a short body one that net/http knows to be in memory, so that it sends it with the head, and
// that is let go when it is sent.
func letGo(r *http.Request, trace *httptrace.ClientTrace) (body io.ReadCloser) {
	b, is := r.Body.(*Body)
	if !is || b.short == nil {
		return r.Body
	}
	short := bytes.NewReader(b.short)
	b.short = []byte{}
	trace.WroteRequest = func(wrote httptrace.WroteRequestInfo) {
		if wrote.Err == nil {
			short.Reset(nil)
		}
	}
	return io.NopCloser(short)
}

// engineConn is a connection to an engine that takes a long body without a copy, or by a buffer that all
// connections share: io.Copy would make one of 32 KB for each request.
type engineConn struct{ net.Conn }

// NetConn is the connection below, for code that needs its descriptor.
func (c engineConn) NetConn() net.Conn { return c.Conn }

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// ReadFrom writes what a body says.
func (c engineConn) ReadFrom(r io.Reader) (int64, error) {
	if limited, is := r.(*io.LimitedReader); is {
		if b, is := limited.R.(*Body); is && b.short == nil && b.left() <= limited.N {
			n, err := b.parts.WriteTo(c.Conn)
			limited.N -= n
			return n, err
		}
	}
	buffer := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, struct{ io.Reader }{r}, buffer[:])
}

// left is how many bytes have not been sent.
func (b *Body) left() (n int64) {
	for _, part := range b.parts {
		n += int64(len(part))
	}
	return n
}
