package http1

import (
	"iter"
	"net"
)

// Body is the body of a request in memory, which it lets go of as it is sent: a stream's answer may take
// hours longer. It is sent once. Its zero value is empty.
type Body struct {
	parts net.Buffers
	room  [16][]byte // for parts: two for each member of one that was edited, of which a usual prefill leg has six
	// unread is called once nothing reads the parts any more, by whatever goroutine; nil: nobody wants to know. It is
	// not called where another transport than this package's reads them: that may do so behind the end of its request.
	unread Releaser
	read   bool // by Read
}

// Put makes one that is empty the body of a request that consists of parts.
func (b *Body) Put(parts iter.Seq[[]byte]) {
	b.parts = b.room[:0]
	for part := range parts {
		b.parts = append(b.parts, part)
	}
}

// Releaser is told once that what it has is free.
type Releaser interface{ Release() }

// WhenUnread has one told once nothing reads the body any more. It is for before the body is sent.
func (b *Body) WhenUnread(unread Releaser) { b.unread = unread }

// letGo lets go of the parts: they were written, or will not be.
func (b *Body) letGo() {
	b.parts, b.room = nil, [16][]byte{}
	if unread := b.unread; unread != nil && !b.read {
		b.unread = nil
		unread.Release()
	}
}

// Read reads what is left.
func (b *Body) Read(p []byte) (int, error) {
	b.read = true
	return b.parts.Read(p)
}

// Close lets nothing go: a body may be closed while another goroutine sends it.
func (b *Body) Close() error { return nil }

// left is how many bytes have not been sent.
func (b *Body) left() (n int64) {
	for _, part := range b.parts {
		n += int64(len(part))
	}
	return n
}
