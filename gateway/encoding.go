package gateway

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/gofiber/fiber/v2"
	"github.com/klauspost/compress/zstd"

	"github.com/tandem-gateway/tandem/pd/queue"
)

// decoders are the codings of request bodies that are taken, one at a time (RFC 9110, 8.4.1).
// Engines get all bodies as they are without one.
var decoders = map[string]func(io.Reader) (io.ReadCloser, error){
	"gzip":    func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"x-gzip":  func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	"deflate": zlib.NewReader,
	"br":      func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(brotli.NewReader(r)), nil },
	"zstd":    newZstdReader,
}

// acceptedCodings are the decoders' names, as a header has them.
const acceptedCodings = "gzip, deflate, br, zstd"

// zstdWindow is the longest window of zstd, in bytes: RFC 9659 allows content codings no longer
// one. Brotli's has 16 MiB at most (RFC 7932, 9.1), gzip's and deflate's 32 KiB.
const zstdWindow = 8 << 20

// newZstdReader decodes in the goroutine that reads.
func newZstdReader(r io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// contentCoding is the coding of a request's body, "" for none. One that is not taken is an
// error before anything of the body is read.
func contentCoding(h header) (string, error) {
	coding := strings.ToLower(strings.TrimSpace(h.Get(fiber.HeaderContentEncoding)))
	if coding == "" || coding == "identity" {
		return "", nil
	}
	if decoders[coding] == nil {
		return "", &badRequest{
			status:  fiber.StatusUnsupportedMediaType,
			message: "This Content-Encoding is not supported. Send the body as it is, or with one of " + acceptedCodings + ".",
		}
	}
	return coding, nil
}

// mostExpansion is how many times as long as it came a body may become that is longer than freeBytes: JSON of people and
// agents is compressed to a twentieth of it at best. Without the bound a few bytes would cost as much as max-body does.
const mostExpansion = 100

var errExpansion = &badRequest{
	status: fiber.StatusRequestEntityTooLarge, code: "request_too_large",
	message: fmt.Sprintf("The request body becomes more than %d times as long as it was sent. Send it without Content-Encoding.", mostExpansion),
}

// mostDecoders is how many bodies are decoded at once, so that other requests have processors left.
func mostDecoders() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// beginDecoding waits for the turn to decode a body, which ends with done.
func (s *Server) beginDecoding(ctx context.Context) (done func(), err error) {
	select {
	case s.decoding <- struct{}{}:
		return func() { <-s.decoding }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// decode takes the coding from a body. What comes out may not be longer than a body without a
// coding, nor mostExpansion times as long as what there was of it, and is counted like one that arrives. What a decoder
// needs beside that is not: few run at once.
func (s *Server) decode(tenant string, body []byte, coding string) (decoded []byte, err error) {
	wrong := invalid("", "The request body is not valid %s.", strings.TrimPrefix(coding, "x-"))
	r, err := decoders[coding](bytes.NewReader(body))
	if err != nil {
		return nil, wrong
	}
	defer func() { _ = r.Close() }() // it holds nothing but memory
	counted := reservedBytes{budget: s.bodies, tenant: tenant, bytes: freeBytes}
	defer counted.release()
	longest := min(s.cfg.MaxBody, max(freeBytes, mostExpansion*len(body)))
	most := longest + 1 // one more byte shows that it is too large
	decoded = make([]byte, 0, min(most, freeBytes))
	for {
		n, err := r.Read(decoded[len(decoded):cap(decoded)])
		decoded = decoded[:len(decoded)+n]
		switch {
		case len(decoded) > s.cfg.MaxBody:
			return nil, s.tooLarge()
		case len(decoded) > longest:
			return nil, errExpansion
		case errors.Is(err, io.EOF):
			return bytes.Clone(decoded), nil // the buffer may be four times as long
		case errors.Is(err, zstd.ErrWindowSizeExceeded):
			return nil, invalid("", "The request body has a window of more than %d bytes, which RFC 9659 does not allow.", zstdWindow)
		case err != nil:
			return nil, wrong
		}
		if len(decoded) < cap(decoded) {
			continue
		}
		size := min(most, 4*cap(decoded))
		if !counted.grow(size) {
			return nil, queue.ErrBytes
		}
		decoded = append(make([]byte, 0, size), decoded...)
	}
}
