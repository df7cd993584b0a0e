package picker

import (
	"encoding/binary"
	"iter"
	"slices"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec reads and writes the pieces of bodies, which are nearly all bytes of the protocol, where
// they lie: protobuf's own code copies each of them three times, into memory that it clears
// before. All other messages are protobuf's.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protobuf.Name)} }

// Numbers of fields (envoy/service/ext_proc/v3/external_processor.proto, go-control-plane 1.39).
const (
	shownRequestBody, shownAnswerBody = 4, 5 // of ProcessingRequest, the proxy's messages
	newRequestBody, newAnswerBody     = 3, 4 // of ProcessingResponse
	lastOfShown                       = 7    // kind of message in a ProcessingRequest; the first is 2

	bodyBytes, bodyEnds = 1, 2 // of HttpBody and StreamedBodyResponse
)

// shownMessage is a message of the proxy: a piece of a body, or any other.
type shownMessage struct {
	piece    bool
	ofAnswer bool
	parts    [][]byte // of the piece, until release
	end      bool     // the piece is the last
	buffers  mem.BufferSlice
	other    *extproc.ProcessingRequest // nil for a piece
}

// release gives back the memory of a piece. Its parts must not be read any more.
func (m *shownMessage) release() {
	m.buffers.Free()
	m.buffers, m.parts = nil, nil
}

// joined is the piece in one, until release.
func (m *shownMessage) joined() []byte {
	if len(m.parts) == 1 {
		return m.parts[0]
	}
	return slices.Concat(m.parts...)
}

// newPiece is a piece of a body for the proxy, in place of those that it showed.
type newPiece struct {
	field protowire.Number // newRequestBody or newAnswerBody
	parts [][]byte
	end   bool
}

// Unmarshal reads a message of the proxy into a shownMessage.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*shownMessage)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if m.readPiece(data) {
		data.Ref()
		m.buffers = data
		return nil
	}
	*m = shownMessage{other: &extproc.ProcessingRequest{}}
	return c.CodecV2.Unmarshal(data, m.other)
}

// readPiece reads a piece of a body, false where the message is, or may be, anything else.
func (m *shownMessage) readPiece(data mem.BufferSlice) bool {
	r := data.Reader()
	defer r.Close()
	number, wireType, ok := readTag(r)
	if !ok || wireType != protowire.BytesType || number != shownRequestBody && number != shownAnswerBody {
		return false
	}
	size, ok := readLength(r)
	if !ok {
		return false
	}
	after := r.Remaining() - size
	for r.Remaining() > after {
		if !m.readBodyField(r, after) {
			return false
		}
	}
	m.piece, m.ofAnswer = true, number == shownAnswerBody
	return hasNoKind(r)
}

// readBodyField reads a field of an HttpBody behind which so many bytes of the message are left.
func (m *shownMessage) readBodyField(r *mem.Reader, after int) bool {
	number, wireType, ok := readTag(r)
	if !ok {
		return false
	}
	switch {
	case number == bodyBytes && wireType == protowire.BytesType:
		size, ok := readLength(r)
		if !ok || size > r.Remaining()-after {
			return false
		}
		if m.parts, ok = peek(r, size); !ok {
			return false
		}
		_, err := r.Discard(size)
		return err == nil
	case number == bodyEnds && wireType == protowire.VarintType:
		value, err := binary.ReadUvarint(r)
		m.end = value != 0
		return err == nil && r.Remaining() >= after
	}
	return false
}

// hasNoKind reports whether the rest of a message is well-formed and has no field that says of
// what kind it is: the last of them would count.
func hasNoKind(r *mem.Reader) bool {
	parts, ok := peek(r, r.Remaining())
	if !ok {
		return false
	}
	var rest []byte
	for _, part := range parts {
		rest = append(rest, part...)
	}
	for len(rest) > 0 {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 || number <= lastOfShown {
			return false
		}
		rest = rest[n:]
	}
	return true
}

func readTag(r *mem.Reader) (protowire.Number, protowire.Type, bool) {
	tag, err := binary.ReadUvarint(r)
	number, wireType := protowire.DecodeTag(tag)
	return number, wireType, err == nil && number.IsValid()
}

// readLength reads how many bytes come next, false where they are not there.
func readLength(r *mem.Reader) (int, bool) {
	size, err := binary.ReadUvarint(r)
	return int(size), err == nil && size <= uint64(r.Remaining())
}

// peek returns the next bytes where they lie.
func peek(r *mem.Reader, size int) ([][]byte, bool) {
	if size == 0 {
		return nil, true
	}
	parts, err := r.Peek(size, nil)
	return parts, err == nil
}

// Marshal writes a newPiece. The bytes of a request's are sent from where they lie; those of an
// answer are copied, since their memory is used for the next.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	p, ok := v.(*newPiece)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := 0
	for _, part := range p.parts {
		size += len(part)
	}
	if p.field == newRequestBody {
		data := make(mem.BufferSlice, 1, 1+len(p.parts))
		data[0] = mem.SliceBuffer(p.appendHead(nil, size))
		for _, part := range p.parts {
			data = append(data, mem.SliceBuffer(part))
		}
		return data, nil
	}
	whole := p.appendHead(make([]byte, 0, longestHead+size), size)
	for _, part := range p.parts {
		whole = append(whole, part...)
	}
	return mem.BufferSlice{mem.SliceBuffer(whole)}, nil
}

// longestHead is the most that stands before a piece's bytes: five tags with lengths below 4 GiB,
// and the end.
const longestHead = 5*(1+5) + 2

// appendHead appends all of the message that stands before the bytes of its piece: a
// ProcessingResponse with a BodyResponse, CommonResponse, BodyMutation and StreamedBodyResponse.
// The end comes first there, so that the bytes are last.
func (p *newPiece) appendHead(b []byte, size int) []byte {
	const response, bodyMutation, streamedResponse = 1, 3, 3
	inner := 0
	if p.end {
		inner += protowire.SizeTag(bodyEnds) + 1
	}
	if size > 0 {
		inner += protowire.SizeTag(bodyBytes) + protowire.SizeBytes(size)
	}
	mutation := protowire.SizeTag(streamedResponse) + protowire.SizeBytes(inner)
	common := protowire.SizeTag(bodyMutation) + protowire.SizeBytes(mutation)
	body := protowire.SizeTag(response) + protowire.SizeBytes(common)
	b = appendMessage(b, p.field, body)
	b = appendMessage(b, response, common)
	b = appendMessage(b, bodyMutation, mutation)
	b = appendMessage(b, streamedResponse, inner)
	if p.end {
		b = append(protowire.AppendTag(b, bodyEnds, protowire.VarintType), 1)
	}
	if size > 0 {
		b = appendMessage(b, bodyBytes, size)
	}
	return b
}

func appendMessage(b []byte, field protowire.Number, size int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.BytesType), uint64(size))
}

// requestPieces cuts the parts of a body into messages, the last of which ends it, unless trailers
// do.
func requestPieces(body iter.Seq[[]byte], end bool) (messages []*newPiece) {
	piece, room := &newPiece{field: newRequestBody}, longestPiece
	for part := range body {
		for len(part) > 0 {
			if room == 0 {
				messages = append(messages, piece)
				piece, room = &newPiece{field: newRequestBody}, longestPiece
			}
			some := part[:min(len(part), room)]
			piece.parts, room, part = append(piece.parts, some), room-len(some), part[len(some):]
		}
	}
	piece.end = end
	return append(messages, piece)
}
