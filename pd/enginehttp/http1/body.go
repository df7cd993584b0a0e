package http1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/tandem-gateway/tandem/pd/enginehttp/socket"
)

// body is the body of an answer. It reads the connection into the buffers that it is given.
type body struct {
	exchange
	held   atomic.Int32 // whose the connection is: see holder
	closed atomic.Bool

	mu       sync.Mutex // held while it is read
	in       *buffer    // read, and not returned; nil: nothing
	err      error      // that ended it
	left     int64      // where it has a length
	chunks   chunks
	how      framing
	keep     bool        // the connection may be used again
	full     bool        // the last read filled all that it was given: there may be more
	late     bool        // it was read by ReadLate
	followed bool        // by a loop; who waits for that closes the connection, where it is taken away
	trailer  http.Header // that was announced
}

// holder says whose a connection is.
const (
	heldByBody = iota
	givenBack  // by who read the body to its end, or failed
	takenAway  // by who closed it before
)

// begin makes it the body of an answer, and gives the connection back where it has none.
func (b *body) begin(resp *http.Response, how framing, in *buffer, keep bool) {
	if how == noBody {
		b.end(keep && len(in.unread()) == 0)
		in.release()
		resp.Body = http.NoBody
		return
	}
	b.how, b.keep, b.left, b.in, b.trailer = how, keep, resp.ContentLength, in, resp.Trailer
	b.releaseEmpty()
	resp.Body = b
}

// directRead is how much room a reader must give to have chunks read into it, in bytes. Where more may be there
// than fills it, it must be more than what a buffer has.
const directRead = 512

// Read reads what is there, or waits for it.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.read(p)
}

func (b *body) read(p []byte) (n int, err error) {
	switch {
	case b.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case b.err != nil:
		return 0, b.err
	case len(p) == 0:
		return 0, nil
	}
	if b.how == byChunks {
		n, err = b.readChunks(p)
	} else {
		n, err = b.readPlain(p)
	}
	return b.settle(n, err)
}

// settle is what a read returns, which ended the body if there is an error.
func (b *body) settle(n int, err error) (int, error) {
	if err != nil {
		b.fail(err)
		if n == 0 {
			return 0, b.err
		}
	}
	return n, nil
}

// ReadLate is Read for who may wait for hours: it reads into room that it takes once something is there. Where that is
// nothing of the body, as the end of a chunk, it returns nothing, and no error.
func (b *body) ReadLate(room socket.Room) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isBare() {
		return b.read(room.Take())
	}
	if !b.late {
		b.late = true
		socket.DelayAcks(b.c.Conn)
	}
	received, err := b.c.readLate(room)
	return b.takeReceived(room.Take(), received, err)
}

// Follow waits for what comes of the body, again and again, and has arrived called with each read into room, or with
// what ended the body, until that returns false. Another goroutine calls it, that of all bodies which are followed:
// arrived must not wait, and may not read on. What is read may be nothing of the body, as the end of a chunk. began is
// false where the body is not one that can be followed now.
func (b *body) Follow(room socket.Room, arrived func(n int, err error) (goOn bool)) (began bool) {
	taken := b.take()
	if taken == nil {
		return false
	}
	defer b.endFollowing() // also after a panic
	err := taken.Follow(room, func(received int, err error) bool {
		if b.c.aborted.Load() {
			received, err = 0, net.ErrClosed
		}
		n, ended, err := b.takeFollowed(room, received, err)
		return arrived(n, err) && !ended
	})
	return err == nil
}

// endFollowing gives the connection back to who reads the body.
func (b *body) endFollowing() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.followed = false
	switch b.held.Load() {
	case heldByBody:
		_ = b.c.giveBack() // else the loop goes on reading it: there is no descriptor left
	case takenAway:
		b.c.closeTaken()
	}
}

// take takes the connection to be followed; nil: it cannot be.
func (b *body) take() *socket.Taken {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isBare() || b.upload != nil && !b.upload.isWritten() {
		return nil
	}
	taken := b.c.take(&b.t.loop)
	b.followed = taken != nil
	return taken
}

// takeFollowed is takeReceived; the next read says how a body ended that has ended.
func (b *body) takeFollowed(room socket.Room, received int, reading error) (n int, ended bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err = b.takeReceived(room.Take(), received, reading)
	return n, b.err != nil, err
}

// isBare reports whether the body comes in chunks, and all of it that was read was returned.
func (b *body) isBare() bool {
	return b.how == byChunks && b.in == nil && !b.full && b.err == nil && !b.closed.Load()
}

// takeReceived is the end of ReadLate, in whose frame a stream waits.
//
//go:noinline
func (b *body) takeReceived(p []byte, received int, reading error) (int, error) {
	n, more, err := b.decodeInPlace(p, received, reading)
	if err == nil && b.chunks.state == chunksEnd {
		err = b.endChunks(more)
	}
	return b.settle(n, err)
}

// readPlain reads a body with a length, or one that ends with the connection.
func (b *body) readPlain(p []byte) (n int, err error) {
	if b.how == byLength {
		p = p[:min(int64(len(p)), b.left)]
	}
	if b.in != nil {
		n = copy(p, b.in.unread())
		b.in.r += n
		b.releaseEmpty()
	} else {
		n, err = b.c.Read(p)
	}
	if b.how == byClose {
		return n, err
	}
	if b.left -= int64(n); b.left == 0 {
		return n, b.complete()
	}
	return n, cut(err)
}

// readChunks reads a body in chunks, until there is some data.
func (b *body) readChunks(p []byte) (n int, err error) {
	for {
		n, more, err := b.decode(p)
		if err != nil {
			return n, err
		}
		if b.chunks.state == chunksEnd {
			return n, b.endChunks(more)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// decode reads once, if nothing is there, and takes the chunks in it apart. more: something is left.
func (b *body) decode(p []byte) (n int, more bool, err error) {
	var used int
	if b.in == nil && len(p) >= directRead && (!b.full || len(p) > bufferSize) {
		received, reading := b.c.Read(p)
		return b.decodeInPlace(p, received, reading)
	}
	var reading error
	if b.in == nil {
		b.in = takeBuffer()
		b.in.w, reading = b.c.Read(b.in.data)
		b.full = b.in.w == len(b.in.data)
	}
	n, used, err = b.chunks.decode(p, b.in.unread())
	b.in.r += used
	b.releaseEmpty()
	return n, b.in != nil, b.firstOf(err, reading)
}

// decodeInPlace takes chunks apart that were received into p.
func (b *body) decodeInPlace(p []byte, received int, reading error) (n int, more bool, err error) {
	b.full = received == len(p)
	n, used, err := b.chunks.decode(p, p[:received])
	return n, used < received, b.firstOf(err, reading)
}

// endChunks ends the body behind its last chunk, where more follows or not: io.EOF if all is well.
func (b *body) endChunks(more bool) error {
	if err := b.readTrailers(); err != nil {
		return err
	}
	b.keep = b.keep && !more
	return b.complete()
}

// firstOf is the error that a read and the chunks in it come to. What has ended did not fail.
func (b *body) firstOf(decoding, reading error) error {
	if decoding != nil || b.chunks.state == chunksEnd {
		return decoding
	}
	return cut(reading)
}

func (b *body) readTrailers() error {
	fields, err := readFields(b.chunks.trailer, nil)
	if err != nil {
		return err
	}
	b.chunks.trailer = nil
	for name := range b.trailer {
		b.trailer[name] = fields[name]
	}
	return nil
}

// complete ends the exchange of a body that is whole.
func (b *body) complete() error {
	if b.held.CompareAndSwap(heldByBody, givenBack) {
		b.end(b.keep && b.in == nil)
	}
	return io.EOF
}

// fail keeps what ended the body, and gives the connection back.
func (b *body) fail(err error) {
	if b.held.CompareAndSwap(heldByBody, givenBack) {
		b.end(false)
		if b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
	} else if b.closed.Load() && !errors.Is(err, io.EOF) {
		err = http.ErrBodyReadAfterClose
	}
	b.err = err
	b.releaseBuffer()
}

func (b *body) releaseEmpty() {
	if b.in != nil && len(b.in.unread()) == 0 {
		b.releaseBuffer()
	}
}

func (b *body) releaseBuffer() {
	if b.in != nil {
		b.in.release()
		b.in = nil
	}
}

// Close ends the answer. The connection is closed with it, if the answer was not read to its end.
func (b *body) Close() error {
	b.closed.Store(true)
	away := b.held.CompareAndSwap(heldByBody, takenAway)
	if away {
		b.watch.stop()
		b.c.abort()
	}
	b.mu.Lock() // who reads it is done soon
	defer b.mu.Unlock()
	if away && !b.followed {
		b.c.closeTaken()
	}
	b.releaseBuffer()
	return nil
}
