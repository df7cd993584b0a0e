package picker

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// framePool is memory for the frames of grpc-go, whose own pool clears all that it gives out although
// each byte is written before it is read.
type framePool struct{ frames sync.Pool } // *[]byte of frameSize

// frameSize is the longest frame that grpc-go takes, in bytes (http2MaxFrameLen).
const frameSize = 16 << 10

func newFramePool() *framePool {
	return &framePool{sync.Pool{New: func() any { b := make([]byte, frameSize); return &b }}}
}

// Get returns memory of a length. Short and long ones are grpc-go's.
func (p *framePool) Get(length int) *[]byte {
	if length <= frameSize/4 || length > frameSize {
		return mem.DefaultBufferPool().Get(length)
	}
	b := p.frames.Get().(*[]byte)
	*b = (*b)[:length]
	return b
}

// Put takes it back.
func (p *framePool) Put(b *[]byte) {
	if cap(*b) != frameSize {
		mem.DefaultBufferPool().Put(b)
		return
	}
	p.frames.Put(b)
}
