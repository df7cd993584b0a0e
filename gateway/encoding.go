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

// acceptedCodings are the decoders' names, as a header has them.
const acceptedCodings = "gzip, deflate"

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
	buffer := s.newBodyBuffer(-1)
	defer buffer.counted.release()
	decoded, err = buffer.readAll(r)
	switch {
	case errors.Is(err, errBodyTooLarge):
		return nil, s.tooLarge()
	case errors.Is(err, queue.ErrFull):
		return nil, err
	case err != nil:
		return nil, wrong
	}
	return decoded, nil
}
