package enginehttp

import (
	"io"
	"iter"
	"net"
	"sync"
)

// Body is the body of a request in memory, which it lets go of as it is sent: a stream's answer may take
// hours longer. It is sent once.
type Body struct{ parts net.Buffers }

// NewBody returns the body of a request that consists of parts.
func NewBody(parts iter.Seq[[]byte]) *Body {
	b := &Body{make(net.Buffers, 0, 8)} // which a usual request has
	for part := range parts {
		b.parts = append(b.parts, part)
	}
	return b
}

// Read reads what is left.
func (b *Body) Read(p []byte) (int, error) { return b.parts.Read(p) }

// Close lets nothing go: net/http may close a body while another goroutine sends it.
func (b *Body) Close() error { return nil }

// left is how many bytes have not been sent.
func (b *Body) left() (n int64) {
	for _, part := range b.parts {
		n += int64(len(part))
	}
	return n
}

// shortBody is how long a body may be, in bytes, with which the head of its request goes out at once. net/http
// writes the two apart, and sends the request on another connection where the head could not be written.
const shortBody = 7 << 10

// engineConn is a connection to an engine that takes a body without a copy, or by a buffer that all
// connections share: io.Copy would make one of 32 KB for each request.
type engineConn struct {
	net.Conn
	// Of who sends the request under way, which net/http has no other beside:
	holdsHead bool
	head      *[]byte // that is held until its body comes; nil: nothing of it came
}

// NetConn is the connection below, for code that needs its descriptor.
func (c *engineConn) NetConn() net.Conn { return c.Conn }

// heads are buffers for the heads of requests.
var heads = sync.Pool{New: func() any { return new([]byte) }}

// Write sends p, or holds it where it is of a head whose body follows.
func (c *engineConn) Write(p []byte) (int, error) {
	if !c.holdsHead {
		return c.Conn.Write(p)
	}
	if c.head == nil {
		c.head = heads.Get().(*[]byte)
		*c.head = (*c.head)[:0]
	}
	*c.head = append(*c.head, p...)
	return len(p), nil
}

var copyBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// ReadFrom sends what a body says, behind the head that is held. What it returns are bytes of the body.
func (c *engineConn) ReadFrom(r io.Reader) (sent int64, err error) {
	head := c.head
	c.holdsHead, c.head = false, nil
	if head != nil {
		defer heads.Put(head)
	}
	if limited, is := r.(*io.LimitedReader); is {
		if b, is := limited.R.(*Body); is && b.left() <= limited.N {
			sent, err = c.send(head, b)
			limited.N -= sent
			return sent, err
		}
	}
	if head != nil {
		if _, err := c.Conn.Write(*head); err != nil {
			return 0, err
		}
	}
	buffer := copyBuffers.Get().(*[32 << 10]byte)
	defer copyBuffers.Put(buffer)
	return io.CopyBuffer(struct{ io.Writer }{c.Conn}, struct{ io.Reader }{r}, buffer[:])
}

// send sends a head, if it is not nil, and all of a body by one system call, as far as the kernel takes it.
func (c *engineConn) send(head *[]byte, b *Body) (sent int64, err error) {
	all, before := b.parts, int64(0)
	if head != nil {
		all, before = append(append(make(net.Buffers, 0, 1+len(all)), *head), all...), int64(len(*head))
	}
	b.parts = nil
	n, err := all.WriteTo(c.Conn)
	return max(0, n-before), err
}
