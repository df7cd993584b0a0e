package gateway

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/tandem-gateway/tandem/pd/queue"
)

// decoders are the codings of request bodies that are taken, one at a time (RFC 9110, 8.4.1).
// Engines get all bodies as they are without one.
var decoders = map[string]func(io.Reader) (io.ReadCloser, error){
	"gzip":    func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"x-gzip":  func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"deflate": zlib.NewReader,
}

// contentCoding is the coding of a request's body, "" for none. One that is not taken is an
// error before anything of the body is read.
func contentCoding(c *fiber.Ctx) (string, error) {
	coding := strings.ToLower(strings.TrimSpace(c.Get(fiber.HeaderContentEncoding)))
	if coding == "" || coding == "identity" {
		return "", nil
	}
	if decoders[coding] == nil {
		return "", &badRequest{
			status:  fiber.StatusUnsupportedMediaType,
			message: "This Content-Encoding is not supported. Send the body as it is, or with gzip or deflate.",
		}
	}
	return coding, nil
}

// decode takes the coding from a body. What comes out may not be longer than a body without a
// coding, however little there was of it, and is counted like one that arrives.
func (s *Server) decode(body []byte, coding string) (decoded []byte, err error) {
	if coding == "" {
		return body, nil
	}
	wrong := invalid("", "The request body is not valid %s.", strings.TrimPrefix(coding, "x-"))
	r, err := decoders[coding](bytes.NewReader(body))
	if err != nil {
		return nil, wrong
	}
	counted := reservedBytes{budget: &s.bodies, bytes: freeBytes}
	defer counted.release()
	most := s.cfg.MaxBody + 1 // one more byte shows that it is too large
	decoded = make([]byte, 0, min(most, freeBytes))
	for {
		n, err := r.Read(decoded[len(decoded):cap(decoded)])
		decoded = decoded[:len(decoded)+n]
		switch {
		case len(decoded) > s.cfg.MaxBody:
			return nil, s.tooLarge()
		case errors.Is(err, io.EOF):
			return bytes.Clone(decoded), nil // the buffer may be four times as long
		case err != nil:
			return nil, wrong
		}
		if len(decoded) < cap(decoded) {
			continue
		}
		size := min(most, 4*cap(decoded))
		if !counted.grow(size) {
			return nil, queue.ErrFull
		}
		decoded = append(make([]byte, 0, size), decoded...)
	}
}
