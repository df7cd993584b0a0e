package picker

import (
	"encoding/binary"
	"iter"
	"slices"
	"unicode/utf8"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/encoding"
	protobuf "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-gateway/tandem/gateway"
)

// codec reads and writes the pieces of bodies, which are nearly all bytes of the protocol, where
// they lie: protobuf's own code copies each of them three times, into memory that it clears
// before. All other messages are protobuf's.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protobuf.Name)} }

// Numbers of fields (envoy/service/ext_proc/v3/external_processor.proto and config/core/v3/base.proto,
// go-control-plane 1.39).
const (
	shownRequestHead, shownAnswerHead = 2, 3 // of ProcessingRequest, the proxy's messages
	shownRequestBody, shownAnswerBody = 4, 5
	lastOfShown                       = 7 // kind of message there; the first is 2

	headHeaders, headEnds            = 1, 3    // of HttpHeaders
	mapHeaders                       = 1       // of HeaderMap
	headerKey, headerText, headerRaw = 1, 2, 3 // of HeaderValue

	newRequestHead, newRequestBody, newAnswerBody = 1, 3, 4 // of ProcessingResponse
	dynamicMetadata                               = 8

	bodyBytes, bodyEnds = 1, 2 // of HttpBody and StreamedBodyResponse
)

// shownMessage is a message of the proxy: a piece of a body, a head, or any other.
type shownMessage struct {
	piece    bool
	head     bool
	ofAnswer bool
	parts    [][]byte                   // of the piece, until release
	headers  headers                    // of the head
	end      bool                       // nothing follows the piece, or the head
	wire     [][]byte                   // parts of the whole message, while it is read
	buffers  mem.BufferSlice            // that the parts are of, until release
	other    *extproc.ProcessingRequest // what stands beside a head, nil: nothing; nil for a piece; else all
}

// release gives back the memory of a piece. Its parts must not be read any more. The message is empty
// then.
func (m *shownMessage) release() {
	m.buffers.Free()
	clear(m.parts)
	*m = shownMessage{parts: m.parts[:0], wire: m.wire}
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
	body  heldBody // that the parts are of; the zero value: of one that stays
}

// heldBody is told when a part of a body was sent, and needs not be there any longer.
type heldBody struct{ *gateway.PickExchange }

// Get is for those who take memory here, as grpc-go does not.
func (heldBody) Get(length int) *[]byte { return mem.DefaultBufferPool().Get(length) }

// Put is told of a part that was sent.
func (h heldBody) Put(*[]byte) { h.ReleaseBody() }

// Unmarshal reads a message of the proxy into a shownMessage.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*shownMessage)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	wire := m.wire[:0]
	for _, b := range data {
		wire = append(wire, b.ReadOnlyData())
	}
	err := m.read(wire)
	clear(wire)
	m.wire = wire[:0]
	if err != nil || !m.piece {
		return err
	}
	data.Ref()
	m.buffers = data
	return nil
}

// read reads a message of the proxy that lies in some parts. A piece of a body stays there.
func (m *shownMessage) read(parts [][]byte) error {
	if m.readPiece(parts) {
		return nil
	}
	whole := parts[:min(1, len(parts))]
	if len(parts) != 1 {
		whole = [][]byte{slices.Concat(parts...)}
	}
	*m = shownMessage{}
	beside, ok := m.readHead(whole[0])
	if ok && len(beside) == 0 {
		return nil
	}
	if !ok {
		*m, beside = shownMessage{}, whole[0]
	}
	m.other = &extproc.ProcessingRequest{}
	if err := proto.Unmarshal(beside, m.other); err != nil || ok {
		return err
	}
	for ofAnswer, head := range map[bool]*extproc.HttpHeaders{false: m.other.GetRequestHeaders(), true: m.other.GetResponseHeaders()} {
		if head != nil {
			m.head, m.ofAnswer, m.headers, m.end = true, ofAnswer, headersOf(head.GetHeaders()), head.GetEndOfStream()
		}
	}
	return nil
}

// readHead reads the head of a request or an answer, as far as its fields are those that proxies send, and returns
// what stands beside it, of no kind: metadata and the like. It is false where the message is, or may be, anything
// else. Protobuf's code takes six times as long, and memory for each header.
func (m *shownMessage) readHead(message []byte) (beside []byte, ok bool) {
	at := 0
	f, ok := nextField(message, at)
	for ; ok && f.number > lastOfShown; f, ok = nextField(message, at) { // Envoy sends these behind, Go before
		at = f.to
	}
	if !ok || f.wireType != protowire.BytesType || f.number != shownRequestHead && f.number != shownAnswerHead || !hasNoKind(message[f.to:]) {
		return nil, false
	}
	m.head, m.ofAnswer, m.headers = true, f.number == shownAnswerHead, make(headers, 0, 16)
	before, end := at, f.to
	text := string(message[:end]) // that all headers lie in
	for at = f.from; at < end; at = f.to {
		switch f, ok = nextField(message[:end], at); {
		case !ok:
			return nil, false
		case f.number == headHeaders && f.wireType == protowire.BytesType:
			if !m.readHeaders(text, message[:f.to], f.from) {
				return nil, false
			}
		case f.number == headEnds && f.wireType == protowire.VarintType:
			m.end = f.value != 0
		default:
			return nil, false
		}
	}
	if before == 0 {
		return message[end:], true
	}
	return slices.Concat(message[:before], message[end:]), true
}

// readHeaders reads the HeaderMap that stands at the end of a message, which a text begins with, too.
func (m *shownMessage) readHeaders(text string, message []byte, at int) bool {
	for at < len(message) {
		f, ok := nextField(message, at)
		if !ok || f.number != mapHeaders || f.wireType != protowire.BytesType {
			return false
		}
		header, raw := headerField{}, ""
		end := f.to
		for at = f.from; at < end; at = f.to {
			if f, ok = nextField(message[:end], at); !ok || f.wireType != protowire.BytesType {
				return false
			}
			switch value := text[f.from:f.to]; {
			case f.number == headerRaw:
				raw = value
			case !utf8.ValidString(value):
				return false
			case f.number == headerKey:
				header.name = value
			case f.number == headerText:
				header.value = value
			default:
				return false
			}
		}
		if raw != "" {
			header.value = raw
		}
		m.headers = append(m.headers, header)
	}
	return true
}

// wireField is a field of a message: a number, or bytes from a place to another.
type wireField struct {
	number   protowire.Number
	wireType protowire.Type
	value    uint64 // of a number
	from, to int    // its value; the next field begins behind
}

// nextField reads the field at a place, false where there is none that is a number or bytes.
func nextField(message []byte, at int) (f wireField, ok bool) {
	var n int
	if f.number, f.wireType, n = protowire.ConsumeTag(message[at:]); n < 0 {
		return f, false
	}
	at += n
	if f.value, n = protowire.ConsumeVarint(message[at:]); n < 0 {
		return f, false
	}
	f.from, f.to = at, at+n
	switch f.wireType {
	case protowire.VarintType:
		return f, true
	case protowire.BytesType:
		f.from = at + n
		f.to = f.from + int(f.value)
		return f, f.value <= uint64(len(message)-f.from)
	}
	return f, false
}

// readPiece reads a piece of a body, false where the message is, or may be, anything else.
func (m *shownMessage) readPiece(parts [][]byte) bool {
	r := newPartsReader(parts)
	number, wireType, ok := readTag(&r)
	if !ok || wireType != protowire.BytesType || number != shownRequestBody && number != shownAnswerBody {
		return false
	}
	size, ok := readLength(&r)
	if !ok {
		return false
	}
	after := r.left - size
	for r.left > after {
		if !m.readBodyField(&r, after) {
			return false
		}
	}
	m.piece, m.ofAnswer = true, number == shownAnswerBody
	return r.left == 0 || hasNoKind(slices.Concat(r.take(nil, r.left)...))
}

// readBodyField reads a field of an HttpBody behind which so many bytes of the message are left.
func (m *shownMessage) readBodyField(r *partsReader, after int) bool {
	number, wireType, ok := readTag(r)
	if !ok {
		return false
	}
	switch {
	case number == bodyBytes && wireType == protowire.BytesType:
		size, ok := readLength(r)
		if !ok || size > r.left-after {
			return false
		}
		m.parts = r.take(m.parts[:0], size) // the last of them counts
		return true
	case number == bodyEnds && wireType == protowire.VarintType:
		value, ok := r.readVarint()
		m.end = value != 0
		return ok && r.left >= after
	}
	return false
}

// hasNoKind reports whether the rest of a message is well-formed and has no field that says of
// what kind it is: the last of them would count.
func hasNoKind(rest []byte) bool {
	for len(rest) > 0 {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 || number <= lastOfShown {
			return false
		}
		rest = rest[n:]
	}
	return true
}

// partsReader reads what lies in some parts.
type partsReader struct {
	part   []byte   // what is left of one
	behind [][]byte // it
	left   int      // bytes in all
}

func newPartsReader(parts [][]byte) partsReader {
	r := partsReader{behind: parts}
	for _, part := range parts {
		r.left += len(part)
	}
	return r
}

// readVarint reads a number, false where the next bytes are none.
func (r *partsReader) readVarint() (uint64, bool) {
	var number [binary.MaxVarintLen64]byte
	for i := range min(len(number), r.left) {
		for len(r.part) == 0 {
			r.part, r.behind = r.behind[0], r.behind[1:]
		}
		number[i] = r.part[0]
		r.part = r.part[1:]
		r.left--
		if number[i] < 0x80 {
			value, n := protowire.ConsumeVarint(number[:i+1])
			return value, n > 0
		}
	}
	return 0, false
}

// take appends the next bytes to others, where they lie. They are there.
func (r *partsReader) take(to [][]byte, size int) [][]byte {
	for size > 0 {
		for len(r.part) == 0 {
			r.part, r.behind = r.behind[0], r.behind[1:]
		}
		n := min(size, len(r.part))
		to = append(to, r.part[:n:n])
		r.part = r.part[n:]
		r.left -= n
		size -= n
	}
	return to
}

func readTag(r *partsReader) (protowire.Number, protowire.Type, bool) {
	tag, ok := r.readVarint()
	number, wireType := protowire.DecodeTag(tag)
	return number, wireType, ok && number.IsValid()
}

// readLength reads how many bytes come next, false where they are not there.
func readLength(r *partsReader) (int, bool) {
	size, ok := r.readVarint()
	return int(size), ok && size <= uint64(r.left)
}

// encoded is a message as it is sent, any number of times.
type encoded struct{ data mem.BufferSlice }

func encode(message *extproc.ProcessingResponse) *encoded {
	raw, err := proto.Marshal(message)
	if err != nil { // never of a message without text
		panic(err)
	}
	return &encoded{mem.BufferSlice{mem.SliceBuffer(raw)}}
}

// Marshal writes a message for the proxy.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *encoded:
		return m.data, nil
	case *newPiece:
		return m.marshal(), nil
	}
	return c.CodecV2.Marshal(v)
}

// marshal writes the piece. The bytes of a request's are sent from where they lie, and held until then; short parts
// and those of an answer, whose memory is used for the next, are copied.
func (p *newPiece) marshal() mem.BufferSlice {
	size := 0
	for _, part := range p.parts {
		size += len(part)
	}
	if p.field != newRequestBody {
		whole := p.appendHead(make([]byte, 0, longestHead+size), size)
		for _, part := range p.parts {
			whole = append(whole, part...)
		}
		return mem.BufferSlice{mem.SliceBuffer(whole)}
	}
	data := make(mem.BufferSlice, 0, 3)
	copied := p.appendHead(make([]byte, 0, 4*longestHead), size)
	for _, part := range p.parts {
		if mem.IsBelowBufferPoolingThreshold(len(part)) { // of which grpc-go does not tell that they were sent
			copied = append(copied, part...)
			continue
		}
		if len(copied) > 0 {
			data, copied = append(data, mem.SliceBuffer(copied)), nil
		}
		data = append(data, p.sendable(part))
	}
	if len(copied) > 0 {
		data = append(data, mem.SliceBuffer(copied))
	}
	return data
}

// sendable is a part of a request's body until grpc-go has sent it, which is behind SendMsg.
func (p *newPiece) sendable(part []byte) mem.Buffer {
	if p.body.PickExchange == nil {
		return mem.SliceBuffer(part)
	}
	p.body.HoldBody()
	return mem.NewBuffer(&part, p.body)
}

// longestHead is the most that stands before a piece's bytes: five tags with lengths below 4 GiB,
// and the end.
const longestHead = 5*(1+5) + 2

// appendHead appends all of the message that stands before the bytes of its piece: a
// ProcessingResponse with a BodyResponse, CommonResponse, BodyMutation and StreamedBodyResponse.
// The end comes first there, so that the bytes are last.
func (p *newPiece) appendHead(b []byte, size int) []byte {
	inner := 0
	if p.end {
		inner += sizeOf(bodyEnds, 0)
	}
	if size > 0 {
		inner += sizeOf(bodyBytes, size)
	}
	mutation := sizeOf(streamedResponse, inner)
	common := sizeOf(bodyMutation, mutation)
	b = appendMessage(b, p.field, sizeOf(commonOf, common))
	b = appendMessage(b, commonOf, common)
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
// do. Each is valid until the next.
func requestPieces(of heldBody, body iter.Seq[[]byte], end bool) iter.Seq[*newPiece] {
	return func(yield func(*newPiece) bool) {
		piece, room := &newPiece{field: newRequestBody, body: of}, longestPiece
		for part := range body {
			for len(part) > 0 {
				if room == 0 {
					if !yield(piece) {
						return
					}
					piece.parts, room = piece.parts[:0], longestPiece
				}
				some := part[:min(len(part), room)]
				piece.parts, room, part = append(piece.parts, some), room-len(some), part[len(some):]
			}
		}
		piece.end = end
		yield(piece)
	}
}
