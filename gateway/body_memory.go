package gateway

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// bodyMemory is memory for bodies that comes back when nothing reads it any more: to take new memory for each
// long prompt, to clear it and to collect it costs as much as to choose its servers, and of a request with a short one
// the body is a fifth of all that is allocated. It has pieces of shortestKept bytes, twice as many, and so on.
type bodyMemory struct {
	bySize [memorySizes]sync.Pool // *[]byte
}

// Memory for bodies that comes back has from shortestKept to longestKept bytes.
const (
	shortestKept = 2 << 10
	memorySizes  = 10
	longestKept  = shortestKept << (memorySizes - 1)
)

// sizeFor is how much memory a body takes that needs room for so many bytes. A short one takes no such memory: it
// would be mostly empty. Where what comes back is spoiled it does, so that tests show all the more.
func sizeFor(room int) int {
	if room > longestKept || room <= shortestKept/2 && !spoilsReleased {
		return room
	}
	return shortestKept << sizeIndex(room)
}

// comesBack reports whether memory of a size of sizeFor does.
func comesBack(size int) bool { return size >= shortestKept && size <= longestKept }

func sizeIndex(room int) int { return bits.Len(uint((max(room, 1) - 1) / shortestKept)) }

// heldMemory is memory that a body lies in, for those who hold it: grow's caller, and who calls Hold. The last to
// release it gives it back. What one of them never releases is left to the collector. Its zero value is none, and so is
// nil.
type heldMemory struct {
	bytes   atomic.Pointer[[]byte] // nil: the body lies in memory that does not come back, or nobody holds it any more
	of      *sync.Pool
	holders atomic.Int32
}

// grow returns a body in memory of a size of sizeFor, and gives back what it lay in before: its only holder does it.
func (h *heldMemory) grow(m *bodyMemory, size int, body []byte) []byte {
	if !comesBack(size) {
		body = append(make([]byte, 0, size), body...)
		h.Release()
		return body
	}
	of := &m.bySize[sizeIndex(size)]
	bytes, _ := of.Get().(*[]byte)
	if bytes == nil {
		taken := make([]byte, size)
		bytes = &taken
	}
	body = append((*bytes)[:0], body...)
	h.Release()
	h.of = of
	h.bytes.Store(bytes)
	h.holders.Store(1)
	return body
}

// Hold lets another read the memory, until it releases it.
func (h *heldMemory) Hold() {
	if h != nil {
		h.holders.Add(1)
	}
}

// Release is the end of one who held it. Any goroutine may call it.
func (h *heldMemory) Release() {
	if h == nil || h.holders.Add(-1) > 0 {
		return
	}
	bytes := h.bytes.Swap(nil)
	if bytes == nil {
		return
	}
	if spoilsReleased {
		for i := range *bytes {
			(*bytes)[i] = 0xDD
		}
	}
	h.of.Put(bytes)
}
