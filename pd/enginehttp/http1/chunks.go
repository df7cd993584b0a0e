package http1

import "io"

// ProtocolError is an answer that is not valid HTTP. It quotes nothing of the answer.
type ProtocolError string

func (e ProtocolError) Error() string { return "the answer is not valid HTTP: " + string(e) }

// What a body in chunks may have beside its data, in bytes.
const (
	maxChunkLine = 4 << 10  // of a size with its extensions
	maxExcess    = 16 << 10 // of all sizes and extensions, above 16 and twice the data of each chunk
	maxTrailers  = 8 << 10
)

// chunks takes a body in chunks apart, however it is cut.
type chunks struct {
	state   chunkState
	digits  uint8 // of the size under way
	line    int32 // bytes of the line under way
	excess  int64
	left    uint64 // of the chunk under way
	trailer []byte // lines behind the last chunk, with their ends
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExtension
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart // of a line
	trailerLine
	trailerLF
	trailersLF
	chunksEnd
)

// decode moves data from src to dst, which may be the same memory. It stops where src is used up, dst is
// full, or the body ends.
func (c *chunks) decode(dst, src []byte) (n, used int, err error) {
	for used < len(src) && c.state != chunksEnd {
		if c.state == chunkData {
			if n == len(dst) {
				return n, used, nil
			}
			k := min(len(dst)-n, int(min(uint64(len(src)-used), c.left)))
			if &dst[n] != &src[used] { // where nothing but data was read, it is in its place
				copy(dst[n:], src[used:used+k])
			}
			n, used, c.left = n+k, used+k, c.left-uint64(k)
			if c.left == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		if err := c.step(src[used]); err != nil {
			return n, used, err
		}
		used++
	}
	return n, used, nil
}

// step takes a byte that is no data.
func (c *chunks) step(b byte) error {
	switch c.state {
	case chunkSize, chunkExtension, chunkSizeLF:
		if c.line++; c.line > maxChunkLine {
			return ProtocolError("a chunk's extensions are too long")
		}
		return c.sizeLine(b)
	case chunkDataCR, chunkDataLF:
		return c.dataEnd(b)
	}
	return c.trailers(b)
}

func (c *chunks) sizeLine(b byte) error {
	if c.state == chunkSizeLF {
		if b != '\n' {
			return ProtocolError("a CR within the line of a chunk's size")
		}
		return c.sizeEnd()
	}
	digit, isDigit := hexDigit(b)
	switch {
	case c.state == chunkSize && isDigit:
		if c.digits++; c.digits > 16 {
			return ProtocolError("a chunk's size has more than 16 digits")
		}
		c.left = c.left<<4 | uint64(digit)
	case c.digits == 0:
		return ProtocolError("a chunk without a size")
	case b == '\r':
		c.state = chunkSizeLF
	case b == ';':
		c.state = chunkExtension
	case c.state == chunkExtension:
		if !isText(b) {
			return ProtocolError("a control character in a chunk's extension")
		}
	default:
		return ProtocolError("a chunk's size is not a number")
	}
	return nil
}

func (c *chunks) sizeEnd() error {
	c.excess += int64(c.line) - 16
	c.excess -= int64(min(c.left, maxExcess)) * 2
	if c.excess = max(c.excess, 0); c.excess > maxExcess {
		return ProtocolError("chunks have too much beside their data")
	}
	c.line, c.digits = 0, 0
	c.state = chunkData
	if c.left == 0 {
		c.state = trailerStart
	}
	return nil
}

func (c *chunks) dataEnd(b byte) error {
	switch {
	case c.state == chunkDataCR && b == '\r':
		c.state = chunkDataLF
	case c.state == chunkDataLF && b == '\n':
		c.state = chunkSize
	default:
		return ProtocolError("a chunk is longer than its size")
	}
	return nil
}

func (c *chunks) trailers(b byte) error {
	switch {
	case c.state == trailersLF && b == '\n':
		c.state = chunksEnd
		return nil
	case c.state == trailerStart && b == '\r':
		c.state = trailersLF
		return nil
	case c.state == trailersLF, c.state == trailerLF && b != '\n':
		return ProtocolError("a CR within a trailer")
	case c.state == trailerLF:
		c.state = trailerStart
	case b == '\n':
		return ProtocolError("a line that ends in LF alone")
	case b == '\r':
		c.state = trailerLF
	default:
		c.state = trailerLine
	}
	if len(c.trailer) == maxTrailers {
		return ProtocolError("the trailers are too long")
	}
	c.trailer = append(c.trailer, b)
	return nil
}

// cut is what the end of the connection says of a body that has not ended.
func cut(err error) error {
	if err == io.EOF { //nolint:errorlint // io.Reader returns it bare
		return io.ErrUnexpectedEOF
	}
	return err
}

func hexDigit(b byte) (value byte, is bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10, true
	}
	return 0, false
}
