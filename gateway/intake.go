package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd"
)

// intake bounds the memory of request bodies that are still arriving. Those that have
// arrived are counted by the queue.
//
// The server reads bodies itself, and only of who may come in: fasthttp would read the
// whole of any body first, into as much memory as the client announces.
type intake struct {
	most int64 // bytes
	now  atomic.Int64
}

const (
	// freeIntake is the memory that any body may take without being counted, in bytes:
	// short requests come in however many long ones do.
	freeIntake = 64 << 10
	// prefetched is how much of a body of known length fasthttp has read before it calls
	// a handler (readBodyWithStreaming in its http.go).
	prefetched = 8 << 10
)

// share is what one body is counted as, in bytes. It begins with what is free.
type share struct {
	intake *intake
	bytes  int
}

// grow counts a body as at least so long, unless all of them would be too long.
func (s *share) grow(bytes int) bool {
	more := int64(max(0, bytes-s.bytes))
	if s.intake.now.Add(more) > s.intake.most && more > 0 {
		s.intake.now.Add(-more)
		return false
	}
	s.bytes = max(s.bytes, bytes)
	return true
}

func (s *share) end() { s.intake.now.Add(int64(freeIntake - s.bytes)) }

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
	counted := share{intake: &s.intake, bytes: freeIntake}
	defer counted.end()
	if !counted.grow(length) {
		return nil, pd.ErrQueueFull
	}
	body = make([]byte, 0, min(most, freeIntake))
	for {
		n, err := stream.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > s.cfg.MaxBody:
			return nil, s.tooLarge()
		case err != nil && wasRefused(c) != nil: // fasthttp takes an error in trailers for their end
			return nil, wasRefused(c).request()
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
			return nil, pd.ErrQueueFull
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

// wasRefused is what is wrong with the message that was read last, nil if nothing.
func wasRefused(c *fiber.Ctx) *badMessage {
	bad, _ := refusedMessage(c)
	return bad
}

// keepAligned closes connections on which a part of a request's body was left unread: it
// would be taken for the next request.
func (s *Server) keepAligned(c *fiber.Ctx) error {
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
