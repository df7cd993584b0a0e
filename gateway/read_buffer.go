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

// spareBuffers are readers, whose buffers no connection needs now.
type spareBuffers struct {
	size         int       // of a large one, in bytes
	large, small sync.Pool // of *bufio.Reader
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
	b.replace(&b.spare.small, 0, &b.spare.large)
	b.lent = true
}

// takeBack gives fasthttp's reader a buffer again, for the next request.
func (b *readBuffer) takeBack() {
	if b.lent {
		b.replace(&b.spare.large, b.spare.size, &b.spare.small)
		b.lent = false
	}
}

// replace puts what is in fasthttp's reader into one pool, and what comes from another one in its place.
func (b *readBuffer) replace(from *sync.Pool, size int, to *sync.Pool) {
	other, is := from.Get().(*bufio.Reader)
	if !is {
		other = bufio.NewReaderSize(nil, size)
	}
	other.Reset(b.conn)
	*other, *b.reader = *b.reader, *other
	other.Reset(nil)
	to.Put(other)
}
