package picker

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// cutAnywhere is a message in buffers as the network may bring it.
func cutAnywhere(message []byte, rng *rand.Rand) (data mem.BufferSlice) {
	for len(message) > 0 {
		n := 1 + rng.IntN(len(message))
		data, message = append(data, mem.SliceBuffer(message[:n])), message[n:]
	}
	return data
}

// Whatever bytes come, a message is read as protobuf reads it, and is refused where protobuf refuses
// it, but for what is wrong within the fields behind a piece: nothing reads them.
func FuzzUnmarshal(f *testing.F) {
	for step := range byte(9) {
		message, err := proto.Marshal(messageOf(step, []byte("a body"), []byte("an answer")))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message, uint64(step))
		f.Add(append(message, 0x52, 0x00), uint64(step))             // with attributes or the like behind it
		f.Add(append(message, 0x2a, 0x02, 0x10, 0x01), uint64(step)) // a second kind
	}
	f.Add([]byte{0x12, 0x09, 0x0a, 0x07, 0x0a, 0x05, 0x0a, 0x01, 'k', 0x1a, 0x00, 0x18, 0x01}, uint64(3))      // an empty raw value, and the end behind
	f.Add([]byte{0x12, 0x0c, 0x0a, 0x0a, 0x0a, 0x08, 0x0a, 0x02, 0xc3, 0x28, 0x12, 0x02, 'a', 'b'}, uint64(3)) // no UTF-8
	f.Add([]byte{0x12, 0x06, 0x0a, 0x04, 0x0a, 0x08, 0x0a, 0x01}, uint64(4))                                   // longer inside than outside
	f.Add([]byte{0x22, 0x05, 0x0a, 0x09, 'a', 'b', 'c'}, uint64(1))                                            // longer inside than outside
	f.Add([]byte{0x22, 0x04, 0x10, 0x80, 0x80, 0x80, 0x01}, uint64(2))
	f.Fuzz(func(t *testing.T, message []byte, seed uint64) {
		var want extproc.ProcessingRequest
		refused := proto.Unmarshal(message, &want)
		var got shownMessage
		err := newCodec().Unmarshal(cutAnywhere(message, rand.New(rand.NewPCG(seed, 1))), &got)
		if refused != nil && got.piece {
			return
		}
		if (err == nil) != (refused == nil) {
			t.Fatalf("%x: %v, protobuf says %v", message, err, refused)
		}
		if err != nil {
			return
		}
		if got.head {
			head := want.GetRequestHeaders()
			if got.ofAnswer {
				head = want.GetResponseHeaders()
			}
			if head == nil || !slices.Equal(got.headers, headersOf(head.GetHeaders())) || got.end != head.GetEndOfStream() {
				t.Fatalf("%x: %q, end %v; protobuf reads %v", message, got.headers, got.end, &want)
			}
			want.Request = nil
			if got.other == nil {
				got.other = &extproc.ProcessingRequest{}
			}
			got.other.Request = nil
		}
		if !got.piece {
			if !proto.Equal(got.other, &want) {
				t.Fatalf("%x: %v, protobuf reads %v", message, got.other, &want)
			}
			return
		}
		body := want.GetRequestBody()
		if got.ofAnswer {
			body = want.GetResponseBody()
		}
		if body == nil || !bytes.Equal(got.joined(), body.GetBody()) || got.end != body.GetEndOfStream() {
			t.Fatalf("%x: %q, end %v; protobuf reads %v", message, got.joined(), got.end, &want)
		}
	})
}

// Pieces are read without protobuf, also those with metadata behind them.
func TestUnmarshal_PiecesLieWhereTheyCame(t *testing.T) {
	for _, ofAnswer := range []bool{false, true} {
		shown := messageOf(3, []byte("a body"), nil)
		if ofAnswer {
			shown = messageOf(7, nil, []byte("a body"))
		}
		message, err := proto.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		message = append(message, 0x42, 0x00) // no metadata, as Envoy says it
		var got shownMessage
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, &got); err != nil {
			t.Fatal(err)
		}
		if !got.piece || got.ofAnswer != ofAnswer || len(got.parts) != 1 || !got.end || string(got.parts[0]) != "a body" {
			t.Fatalf("%+v", got)
		}
		at := bytes.Index(message, []byte("a body"))
		if &got.parts[0][0] != &message[at] {
			t.Error("the body was copied")
		}
	}
}

// Heads as Envoy sends them are read without protobuf, but for what stands beside them.
func TestUnmarshal_Heads(t *testing.T) {
	list := headerList(":method", "POST", "x-empty", "", "user-agent", "curl")
	list.Headers = append(list.Headers, &corev3.HeaderValue{Key: "x-text", Value: "as text"}, &corev3.HeaderValue{Key: "x-both", Value: "text", RawValue: []byte("\xff raw")})
	want := headers{{":method", "POST"}, {"x-empty", ""}, {"user-agent", "curl"}, {"x-text", "as text"}, {"x-both", "\xff raw"}}
	config := &extproc.ProtocolConfiguration{RequestBodyMode: buffered}
	for _, end := range []bool{false, true} {
		for _, shown := range []*extproc.ProcessingRequest{
			{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: list, EndOfStream: end}}},
			{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: list, EndOfStream: end}}, ProtocolConfig: config},
			{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: list, EndOfStream: end}}},
		} {
			message, err := proto.Marshal(shown)
			if err != nil {
				t.Fatal(err)
			}
			var got shownMessage
			if _, ok := (&shownMessage{}).readHead(message); !ok {
				t.Errorf("%v is left to protobuf", shown)
			}
			if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, &got); err != nil {
				t.Fatal(err)
			}
			if !got.head || got.ofAnswer != (shown.GetResponseHeaders() != nil) || got.end != end || !slices.Equal(got.headers, want) {
				t.Errorf("%v is read as %+v", shown, got)
			}
			if got.other.GetProtocolConfig().GetRequestBodyMode() != shown.GetProtocolConfig().GetRequestBodyMode() {
				t.Errorf("the mode is %v", got.other)
			}
		}
	}
}

// The head for servers is protobuf's message of the same, with values and a body of all lengths.
func TestNewHead_IsProtobufs(t *testing.T) {
	for _, size := range []int{0, 1, 126, 127, 128, 16_000, 70_000} {
		long := strings.Repeat("x", size)
		h := &newHead{addresses: []string{"10.0.0.1:8000", "10.0.0.2:8000" + long}, set: []headerField{{"a", long}, {"b" + long, "\xff"}}, remove: []string{"c", "d" + long}}
		list := "10.0.0.1:8000,10.0.0.2:8000" + long
		common := func() *extproc.CommonResponse {
			return &extproc.CommonResponse{ClearRouteCache: true, HeaderMutation: &extproc.HeaderMutation{
				SetHeaders:    []*corev3.HeaderValueOption{set(destination, list), set("a", long), set("b"+long, "\xff")},
				RemoveHeaders: []string{"c", "d" + long},
			}}
		}
		withBody := common()
		withBody.BodyMutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: []byte(long)}}
		where := &structpb.Struct{Fields: map[string]*structpb.Value{
			destinationSpace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{destination: structpb.NewStringValue(list)}}),
		}}
		for name, c := range map[string]struct {
			got  *encoded
			want *extproc.ProcessingResponse
		}{
			"head":          {h.encode(newRequestHead, nil), &extproc.ProcessingResponse{DynamicMetadata: where, Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: common()}}}},
			"with the body": {h.encode(newRequestBody, nil), &extproc.ProcessingResponse{DynamicMetadata: where, Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: common()}}}},
			"another body":  {h.encode(newRequestBody, []byte(long)), &extproc.ProcessingResponse{DynamicMetadata: where, Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: withBody}}}},
		} {
			if got := unmarshalled(t, c.got); !proto.Equal(got, c.want) {
				t.Errorf("%d bytes, %s: %.500v, want %.500v", size, name, got, c.want)
			}
		}
	}
}

// Pieces for the proxy are what protobuf reads as such, with lengths of one to three bytes; a
// request's long parts are not copied, an answer's are.
func TestMarshal_PiecesAreProtobufs(t *testing.T) {
	for _, size := range []int{0, 1, 100, 130, 16_000, 62_000} {
		for _, end := range []bool{false, true} {
			body := bytes.Repeat([]byte("x"), size)
			parts := [][]byte{body[:size/3], body[size/3 : size/3+size/200], body[size/3+size/200:]}
			request := unmarshalled(t, &newPiece{field: newRequestBody, parts: parts, end: end}).GetRequestBody()
			answer := unmarshalled(t, &newPiece{field: newAnswerBody, parts: parts, end: end}).GetResponseBody()
			for _, r := range []*extproc.BodyResponse{request, answer} {
				piece := r.GetResponse().GetBodyMutation().GetStreamedResponse()
				if piece == nil || !bytes.Equal(piece.GetBody(), body) || piece.GetEndOfStream() != end {
					t.Errorf("%d bytes, end %v: %d bytes, end %v", size, end, len(piece.GetBody()), piece.GetEndOfStream())
				}
			}
		}
	}
	body := bytes.Repeat([]byte("a body"), 1000)
	for field, shared := range map[bool]*newPiece{true: {field: newRequestBody, parts: [][]byte{body}, end: true}, false: {field: newAnswerBody, parts: [][]byte{body}, end: true}} {
		data, err := newCodec().Marshal(shared)
		if err != nil {
			t.Fatal(err)
		}
		lies := slices.ContainsFunc(data, func(b mem.Buffer) bool { return &b.ReadOnlyData()[0] == &body[0] })
		if lies != field {
			t.Errorf("field %d: sent from where it lies: %v", shared.field, lies)
		}
	}
}

func unmarshalled(t *testing.T, message any) *extproc.ProcessingResponse {
	t.Helper()
	data, err := newCodec().Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	var m extproc.ProcessingResponse
	if err := proto.Unmarshal(data.Materialize(), &m); err != nil {
		t.Fatal(err)
	}
	return &m
}

// A body is cut into messages of at most longestPiece bytes, wherever its parts lie, and only the
// last ends it.
func TestRequestPieces_CutAnywhere(t *testing.T) {
	for _, sizes := range [][]int{{}, {0}, {10}, {longestPiece}, {longestPiece, 1}, {1, longestPiece}, {20_000, 50_000, 3}, {200_000}, {3, 2 * longestPiece}} {
		var parts [][]byte
		for i, size := range sizes {
			parts = append(parts, bytes.Repeat([]byte{byte('a' + i)}, size))
		}
		var joined []byte
		var pieces []newPiece
		for p := range requestPieces(heldBody{}, slices.Values(parts), true) {
			pieces = append(pieces, *p)
			pieces[len(pieces)-1].parts = slices.Clone(p.parts)
		}
		for i, p := range pieces {
			whole := slices.Concat(p.parts...)
			joined = append(joined, whole...)
			if last := i == len(pieces)-1; p.end != last || len(whole) > longestPiece || len(whole) == 0 && len(pieces) > 1 {
				t.Errorf("%v: piece %d of %d has %d bytes, end %v", sizes, i, len(pieces), len(whole), p.end)
			}
		}
		if !bytes.Equal(joined, slices.Concat(parts...)) {
			t.Errorf("%v: %d bytes", sizes, len(joined))
		}
	}
}

// What is always the same is written without taking memory, and read by the proxy as what it says.
func TestEncoded(t *testing.T) {
	c := newCodec()
	for want, message := range map[string]*encoded{
		"*ext_procv3.ProcessingResponse_RequestHeaders": showBody, "*ext_procv3.ProcessingResponse_ResponseHeaders": answerHead, "*ext_procv3.ProcessingResponse_ResponseBody": asItCame,
		"*ext_procv3.ProcessingResponse_RequestTrailers": requestTrailers, "*ext_procv3.ProcessingResponse_ResponseTrailers": answerTrailers,
	} {
		var data mem.BufferSlice
		var err error
		allocated := testing.AllocsPerRun(100, func() {
			data, err = c.Marshal(message)
			data.Free()
		})
		var got extproc.ProcessingResponse
		if err == nil {
			err = proto.Unmarshal(data.Materialize(), &got)
		}
		if kind := fmt.Sprintf("%T", got.GetResponse()); err != nil || allocated != 0 || kind != want {
			t.Errorf("%s, %v allocations, %v; want %s", kind, allocated, err, want)
		}
	}
}
