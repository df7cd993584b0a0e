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

// readBody reads a request's body to its end. An announced length is counted at once, so
// that some come in whole where not all can; the buffer grows with what has come.
func (s *Server) readBody(c *fiber.Ctx) (body []byte, err error) {
	length := c.Request().Header.ContentLength() // negative: it comes in chunks
	if length > s.cfg.MaxBody {
		return nil, s.tooLarge()
	}
	stream := c.Context().RequestBodyStream()
	if stream == nil {
		return nil, nil
	}
	most := s.cfg.MaxBody + 1 // one more byte shows that a body in chunks is too large
	if length >= 0 {
		most = length
	}
	counted := reservedBytes{budget: &s.bodies, bytes: freeBytes}
	defer counted.release()
	if !counted.grow(length) {
		return nil, queue.ErrFull
	}
	body = make([]byte, 0, min(most, freeBytes))
	for {
		n, err := stream.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > s.cfg.MaxBody:
			return nil, s.tooLarge()
		case err != nil && badMessageOf(c) != nil: // fasthttp takes an error in trailers for their end
			return nil, badMessageOf(c).request()
		case errors.Is(err, io.EOF) && (len(body) < length || length < 0 && hasEnded(c)):
			return nil, context.Canceled // the client left
		case errors.Is(err, io.EOF) && length < 0:
			return bytes.Clone(body), c.Request().CloseBodyStream() // the buffer may be four times as long
		case errors.Is(err, io.EOF):
			return body, c.Request().CloseBodyStream()
		case err != nil:
			return nil, unreadable(err)
		}
		if len(body) < cap(body) {
			continue
		}
		size := min(most, 4*cap(body))
		if !counted.grow(size) {
			return nil, queue.ErrFull
		}
		body = append(make([]byte, 0, size), body...)
	}
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
