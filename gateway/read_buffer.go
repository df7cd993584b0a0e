package gateway

import (
	"bufio"
	"io"
	"net"
	"reflect"
	"sync"
)

// readBuffer is the buffer by which fasthttp reads a client's connection. It is as long as the longest head,
// and nothing is read while an answer goes out: a stream lends it to others until it ends. Its goroutine is
// that of the connection.
type readBuffer struct {
	conn   net.Conn
	reader *bufio.Reader // fasthttp's; nil: it is not known
	spare  *spareBuffers
	lent   bool
}

// spareBuffers are readers, whose buffers no connection needs now. Of large ones few are kept: as many as
// streams end at about the same time. A sync.Pool would hold one for each stream that is open, until two
// collections have passed.
type spareBuffers struct {
	size  int // of a large one, in bytes
	large chan *bufio.Reader
	small sync.Pool // of *bufio.Reader of the least size, which stand in for large ones
}

// mostSpare is how many large buffers are kept: 1 MB of them, as long as heads usually may be.
const mostSpare = 64

func newSpareBuffers(size int) *spareBuffers {
	return &spareBuffers{size: size, large: make(chan *bufio.Reader, mostSpare)}
}

// readBufferOf finds the reader of a request's body in fasthttp, which has no way to ask for it. Where it is
// not found, as in another version perhaps, nothing is lent.
func readBufferOf(conn net.Conn, body io.Reader, spare *spareBuffers) readBuffer {
	b := readBuffer{conn: conn, spare: spare}
	stream := reflect.ValueOf(body)
	if stream.Kind() != reflect.Pointer || stream.Elem().Kind() != reflect.Struct {
		return b
	}
	field := stream.Elem().FieldByName("reader")
	if field.IsValid() && field.Type() == reflect.TypeFor[*bufio.Reader]() {
		b.reader = (*bufio.Reader)(field.UnsafePointer())
	}
	return b
}

// lend gives the buffer away, unless there is something of the next request in it.
func (b *readBuffer) lend() {
	if b.reader == nil || b.reader.Buffered() > 0 || b.reader.Size() != b.spare.size {
		return
	}
	small, is := b.spare.small.Get().(*bufio.Reader)
	if !is {
		small = bufio.NewReaderSize(nil, 0)
	}
	b.lent = true
	select {
	case b.spare.large <- b.replace(small):
	default:
	}
}

// takeBack gives fasthttp's reader a buffer again, for the next request.
func (b *readBuffer) takeBack() {
	if !b.lent {
		return
	}
	b.lent = false
	var large *bufio.Reader
	select {
	case large = <-b.spare.large:
	default:
		large = bufio.NewReaderSize(nil, b.spare.size)
	}
	b.spare.small.Put(b.replace(large))
}

// replace gives fasthttp's reader the buffer of another one, which gets what it had.
func (b *readBuffer) replace(other *bufio.Reader) *bufio.Reader {
	other.Reset(b.conn)
	*other, *b.reader = *b.reader, *other
	other.Reset(nil)
	return other
}
