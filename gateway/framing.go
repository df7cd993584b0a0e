package gateway

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
)

// framing follows the messages of one connection as they are read, and finds the first
// byte of them that a strict server does not take. The parser behind it (fasthttp's) takes
// Content-Length beside chunks, folded lines, bare line feeds, and more: another server
// before this one may read such a message in another way, and a second request out of the
// first. What framing lets through has one reading only.
//
// It reads lines and counts bodies; it copies nothing but a line that comes in pieces.
type framing struct {
	maxHead int // bytes
	maxBody int // bytes

	at   frame
	held []byte // the beginning of a line whose end has not come
	size int    // bytes of the head so far, or of the trailers
	left int64  // bytes to come of the body, or of the chunk
	head head
}

// frame is what the next byte of a connection belongs to.
type frame int

const (
	inRequestLine frame = iota
	inFields
	inBody
	inChunkSize
	inChunk
	afterChunk // the line's end that closes it
	inTrailers
)

const (
	maxTarget    = 8 << 10 // bytes of a request target, as in nginx and Apache
	maxFields    = 128     // of a head, and of trailers
	maxChunkLine = 256     // bytes of a chunk's size and extensions
	maxTrailers  = 8 << 10 // bytes
)

// badMessage says why a message is refused. Its text repeats nothing of the message.
type badMessage struct {
	status int
	why    string
}

func (e *badMessage) Error() string { return e.why }

// request is the error that clients get.
func (e *badMessage) request() *badRequest {
	bad := &badRequest{status: e.status, message: "The HTTP request is malformed: " + e.why + "."}
	switch e.status {
	case http.StatusRequestEntityTooLarge:
		bad.code, bad.message = "request_too_large", "The request was refused: "+e.why+"."
	case http.StatusNotFound:
		bad.code, bad.message = "not_found", "There is nothing at a path that begins with two slashes. Does the base URL end in a slash?"
	}
	return bad
}

func malformed(why string) *badMessage { return &badMessage{status: 400, why: why} }

var (
	errLineEnd    = malformed("a line does not end with CR LF")
	errControl    = malformed("it contains a control character")
	errTarget     = &badMessage{status: 414, why: fmt.Sprintf("its target is longer than %d bytes", maxTarget)}
	errHeadSize   = &badMessage{status: 431, why: "its header block is larger than the limit"}
	errFields     = &badMessage{status: 431, why: fmt.Sprintf("it has more than %d headers", maxFields)}
	errChunkSize  = malformed("a chunk has no valid size")
	errChunkLine  = malformed("a chunk's extensions are longer than the limit")
	errChunkEnd   = malformed("a chunk is not as long as it says")
	errTrailers   = malformed("its trailers are larger than the limit")
	errBodyLength = &badMessage{status: 413, why: "its body is larger than the limit"}
)

// follow looks at the next bytes of the connection. It returns how many may be passed on,
// and what is wrong with the message that the byte after them belongs to.
func (f *framing) follow(p []byte) (passed int, wrong *badMessage) {
	for passed < len(p) {
		if f.left > 0 {
			passed += f.skip(len(p) - passed)
			continue
		}
		end := bytes.IndexByte(p[passed:], '\n') + 1
		if end == 0 {
			if wrong := f.hold(p[passed:]); wrong != nil {
				return passed, wrong
			}
			return len(p), nil
		}
		line := p[passed : passed+end]
		if len(f.held) > 0 {
			f.held = append(f.held, line...)
			line = f.held
		}
		if wrong := f.line(line); wrong != nil {
			return passed, wrong
		}
		f.held = nil
		passed += end
	}
	return passed, nil
}

// isBetweenMessages reports whether nothing of a message was read behind the last one.
func (f *framing) isBetweenMessages() bool {
	return f.at == inRequestLine && len(f.held) == 0
}

// skip passes what is left of a body, or of a chunk, as far as it is there.
func (f *framing) skip(there int) int {
	n := min(f.left, int64(there))
	f.left -= n
	switch {
	case f.left > 0:
	case f.at == inChunk:
		f.at = afterChunk
	default:
		f.at = inRequestLine
	}
	return int(n)
}

// hold keeps the beginning of a line. What cannot become a line is refused at once: its
// end may never come.
func (f *framing) hold(piece []byte) *badMessage {
	for _, c := range piece {
		if c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
			return errControl
		}
	}
	f.held = append(f.held, piece...)
	return f.fits(len(f.held))
}

// fits refuses a line that is too long, however it ends.
func (f *framing) fits(length int) *badMessage {
	switch f.at {
	case inRequestLine:
		if length > maxTarget+32 || length >= f.maxHead { // the parser's buffer would be full
			return errTarget
		}
	case inFields:
		if f.size+length >= f.maxHead { // likewise
			return errHeadSize
		}
	case inTrailers:
		if f.size+length > maxTrailers {
			return errTrailers
		}
	default:
		if length > maxChunkLine {
			return errChunkLine
		}
	}
	return nil
}

// line takes a whole line, with its end.
func (f *framing) line(line []byte) *badMessage {
	if wrong := f.fits(len(line)); wrong != nil {
		return wrong
	}
	text, found := bytes.CutSuffix(line, crlf)
	if !found {
		return errLineEnd
	}
	f.size += len(line)
	switch f.at {
	case inRequestLine:
		return f.begin(text)
	case inFields:
		if len(text) == 0 {
			return f.endHead()
		}
		return f.head.field(text)
	case inChunkSize:
		return f.chunk(text)
	case afterChunk:
		if len(text) > 0 {
			return errChunkEnd
		}
		f.at = inChunkSize
		return nil
	case inTrailers:
		if len(text) == 0 {
			f.at = inRequestLine
			return nil
		}
		return f.head.trailer(text)
	}
	panic("a body has no lines")
}

var crlf = []byte("\r\n")

// begin takes a request line. One empty line before it is passed over, as RFC 9112 2.2
// wants: some clients send one after a body.
func (f *framing) begin(text []byte) *badMessage {
	if len(text) == 0 && !f.head.skipped {
		f.head.skipped = true
		return nil
	}
	f.head.reset()
	f.size = len(text) + len(crlf)
	f.at = inFields
	return f.head.requestLine(text)
}

// endHead takes the empty line after a head, which settles how long the body is.
func (f *framing) endHead() *badMessage {
	h := &f.head
	if wrong := h.end(); wrong != nil {
		return wrong
	}
	f.size = 0
	switch {
	case h.chunked:
		f.at = inChunkSize
	case h.length > int64(f.maxBody):
		return errBodyLength
	case h.length > 0:
		f.at, f.left = inBody, h.length
	default:
		f.at = inRequestLine
	}
	return nil
}

// chunk takes the line before a chunk: its size, and extensions that are not read.
func (f *framing) chunk(text []byte) *badMessage {
	digits, extensions, _ := bytes.Cut(text, []byte{';'})
	size := uint64(0)
	for _, c := range digits {
		d := hexDigit(c)
		if d < 0 {
			return errChunkSize
		}
		size = size<<4 | uint64(d)
	}
	if len(digits) == 0 || len(digits) > 16 || size > math.MaxInt64 {
		return errChunkSize
	}
	if wrong := plain(extensions); wrong != nil {
		return wrong
	}
	switch {
	case size > uint64(f.maxBody):
		return errBodyLength
	case size == 0:
		f.at, f.size, f.head.fields = inTrailers, 0, 0
	default:
		f.at, f.left = inChunk, int64(size)
	}
	return nil
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
