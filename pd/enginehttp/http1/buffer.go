package http1

import (
	"io"
	"sync"
)

// bufferSize holds a usual head with what comes with it, in bytes.
const bufferSize = 4 << 10

// buffer is borrowed for what was read and not yet returned.
type buffer struct {
	data []byte // usual, or longer
	r, w int    // what is between them was not returned
	line int    // where the line of a head begins that is not complete
	// usual is what data is where a head is not longer.
	usual [bufferSize]byte
}

var buffers = sync.Pool{New: func() any {
	b := new(buffer)
	b.data = b.usual[:]
	return b
}}

func takeBuffer() *buffer { return buffers.Get().(*buffer) }

func (b *buffer) release() {
	b.data, b.r, b.w, b.line = b.usual[:], 0, 0, 0
	buffers.Put(b)
}

func (b *buffer) unread() []byte { return b.data[b.r:b.w] }

// readHead reads up to the end of a head of at most limit bytes, which is valid until the next call.
func (b *buffer) readHead(from io.Reader, limit int) (head []byte, err error) {
	b.line = 0
	for {
		end, line, err := endOfHead(b.unread(), b.line)
		if err != nil {
			return nil, err
		}
		b.line = line
		if end > limit || end == 0 && b.w-b.r >= limit {
			return nil, ProtocolError("the head is too long")
		}
		if end > 0 {
			head = b.data[b.r : b.r+end]
			b.r += end
			return head, nil
		}
		if b.w == len(b.data) {
			b.makeRoom()
		}
		n, err := from.Read(b.data[b.w:])
		b.w += n
		if err != nil && n == 0 {
			return nil, err
		}
	}
}

// makeRoom moves what is unread to the front, and doubles the buffer if there is nothing before it.
func (b *buffer) makeRoom() {
	to := b.data
	if b.r == 0 {
		to = make([]byte, 2*len(b.data))
	}
	b.r, b.w = 0, copy(to, b.unread())
	b.data = to
}
