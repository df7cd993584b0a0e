package http1

import (
	"iter"
	"net"
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

// Close lets nothing go: a body may be closed while another goroutine sends it.
func (b *Body) Close() error { return nil }

// left is how many bytes have not been sent.
func (b *Body) left() (n int64) {
	for _, part := range b.parts {
		n += int64(len(part))
	}
	return n
}
