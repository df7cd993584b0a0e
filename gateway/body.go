package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd/queue"
)

// prefetched is how much of a body of known length fasthttp has read before it calls a
// handler (readBodyWithStreaming in its http.go), in bytes.
const prefetched = 8 << 10

// readBody reads the body of a tenant's request to its end. in is the memory that it lies in, nil if that does not come back.
func (s *Server) readBody(c *fiber.Ctx, tenant string) (body []byte, in *heldMemory, err error) {
	length := c.Request().Header.ContentLength() // negative: it comes in chunks
	if length > s.cfg.MaxBody {
		return nil, nil, s.tooLarge()
	}
	stream := c.Context().RequestBodyStream()
	if stream == nil {
		return nil, nil, nil
	}
	buffer := s.newBodyBuffer(length)
	buffer.counted.tenant = tenant
	defer buffer.counted.release()
	body, err = buffer.readAll(stream)
	switch {
	case errors.Is(err, errBodyTooLarge):
		return nil, nil, s.tooLarge()
	case errors.Is(err, queue.ErrBytes):
		return nil, nil, err
	case badMessageOf(c) != nil: // fasthttp takes an error in trailers for their end
		return nil, nil, badMessageOf(c).request()
	case err != nil:
		return nil, nil, unreadable(err)
	case len(body) < length || length < 0 && hasEnded(c):
		return nil, nil, context.Canceled // the client left
	}
	err = c.Request().CloseBodyStream()
	c.Request().ResetBody() // of which fasthttp keeps the beginning for as long as the answer takes
	return body, buffer.held, err
}

// bodyBuffer is a body while it is read. It grows with what has come, and is counted.
type bodyBuffer struct {
	data    []byte
	length  int // in bytes, as announced; negative: it is not known
	most    int // bytes that a body may have
	counted reservedBytes

	memory *bodyMemory
	held   *heldMemory // that data lies in; nil: in memory that does not come back
}

var errBodyTooLarge = errors.New("the body is larger than the limit")

func (s *Server) newBodyBuffer(length int) *bodyBuffer {
	return &bodyBuffer{length: length, most: s.cfg.MaxBody, counted: reservedBytes{budget: s.bodies, bytes: freeBytes}, memory: &s.bodyMemory}
}

// readAll reads to the end of the body. An announced length is counted at once, so that some
// come in whole where not all can, and a usual one is given its room at once. Errors: errBodyTooLarge,
// queue.ErrBytes, or the reader's.
func (b *bodyBuffer) readAll(r io.Reader) ([]byte, error) {
	largest := b.most + 1 // the one byte more shows that it is too large
	if b.length >= 0 {
		largest = b.length
	}
	if !b.counted.grow(b.length) {
		return nil, queue.ErrBytes
	}
	b.makeRoom(min(largest, max(freeBytes, min(b.length, roomAtOnce))))
	for {
		n, err := r.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case len(b.data) > b.most:
			return nil, errBodyTooLarge
		case errors.Is(err, io.EOF) && b.length < 0:
			return bytes.Clone(b.data), nil // the buffer may be four times as long
		case errors.Is(err, io.EOF):
			return b.data, nil
		case err != nil:
			return nil, err
		}
		if len(b.data) < cap(b.data) {
			continue
		}
		size := min(largest, 4*cap(b.data))
		if !b.counted.grow(size) {
			return nil, queue.ErrBytes
		}
		b.makeRoom(size)
	}
}

// makeRoom moves the body to memory of a size, or longer. Of a body of unknown length it does not come back: it is
// moved once more, to as much as it needs.
func (b *bodyBuffer) makeRoom(size int) {
	if b.length < 0 {
		b.data = append(make([]byte, 0, size), b.data...)
		return
	}
	b.moveTo(sizeFor(size))
}

// moveTo moves the body to memory of a size of sizeFor.
func (b *bodyBuffer) moveTo(size int) {
	if b.held == nil && comesBack(size) {
		b.held = new(heldMemory)
	}
	b.data = b.held.grow(b.memory, size, b.data)
}

// roomAtOnce is how much memory a body takes at once that says that it is as long, in bytes: most prompts are
// not copied while they come.
const roomAtOnce = 256 << 10

// add takes a piece of a body. What is announced bounds nothing but how the buffer grows. Errors:
// readAll's.
func (b *bodyBuffer) add(piece []byte) error {
	size := len(b.data) + len(piece)
	if size > b.most || b.length > b.most {
		return errBodyTooLarge
	}
	if size > cap(b.data) {
		room := max(size, min(4*cap(b.data), b.most), min(b.length, max(roomAtOnce, 4*cap(b.data))))
		if size <= b.length {
			room = min(room, b.length)
		}
		room = sizeFor(room)
		if !b.counted.grow(room) {
			return queue.ErrBytes
		}
		b.moveTo(room)
	}
	b.data = append(b.data, piece...)
	return nil
}

// hasEnded reports whether the client's side of the connection ended while more was to be
// read: fasthttp takes that between two chunks for the end of the body.
func hasEnded(c *fiber.Ctx) bool {
	conn, ok := c.Context().Conn().(*clientConn)
	return ok && conn.ended.Load()
}

// badMessageOf is what is wrong with the message that was read last, nil if nothing.
func badMessageOf(c *fiber.Ctx) *badMessage {
	bad, _ := refusedMessage(c)
	return bad
}

// closeIfBodyUnread closes connections on which a part of a request's body was left unread: it
// would be taken for the next request.
func (s *Server) closeIfBodyUnread(c *fiber.Ctx) error {
	defer func() {
		length := c.Request().Header.ContentLength()
		if c.Context().RequestBodyStream() == nil || length >= 0 && length <= min(prefetched, s.cfg.MaxBody) {
			return
		}
		c.Context().SetConnectionClose()
		if conn, ok := c.Context().Conn().(*clientConn); ok {
			conn.linger.Store(true)
		}
	}()
	return c.Next()
}

func (s *Server) tooLarge() error {
	return &badRequest{
		status: fiber.StatusRequestEntityTooLarge, code: "request_too_large",
		message: fmt.Sprintf("The request body is larger than the limit of %d bytes.", s.cfg.MaxBody),
	}
}

// unreadable is what an error while a body was read means.
func unreadable(err error) error {
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return &badRequest{status: fiber.StatusRequestTimeout, message: "The request did not arrive in time."}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network):
		return context.Canceled
	}
	return &badRequest{status: fiber.StatusBadRequest, message: "The HTTP request is malformed."}
}
