package picker

import (
	"net/http"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-gateway/tandem/gateway"
)

// longestPiece is how much of a body one message carries, in bytes: some proxies refuse messages
// beyond 64 KiB (llm-d-router pkg/common/envoy/chunking.go).
const longestPiece = 62_000

// newHead sends a request to the first of some addresses that takes it: named in a header and in
// metadata, since proxies read one or the other.
type newHead struct {
	addresses []string
	set       []headerField // names in lower case, in place of any that are there
	remove    []string
}

// Numbers of fields of what newHead is encoded as (wire.go).
const (
	commonOf                           = 1    // of HeadersResponse and BodyResponse
	headerMutation, bodyMutation       = 2, 3 // of CommonResponse
	clearRouteCache                    = 5    // likewise
	mutatedBody, streamedResponse      = 1, 3 // of BodyMutation
	setHeader, removeHeader            = 1, 2 // of HeaderMutation
	optionHeader, appendAction         = 1, 3 // of HeaderValueOption
	structFields                       = 1    // of google.protobuf.Struct
	entryKey, entryValue               = 1, 2 // of a map
	structValue, stringValue           = 5, 3 // of google.protobuf.Value
	overwrite                     byte = byte(corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
)

// encode is the message that answers a request's head, or its body: that is for a proxy which holds the head back
// until it has shown its whole body. Another body is sent instead of the client's, nil where that goes as it is.
func (h *newHead) encode(answers protowire.Number, body []byte) *encoded {
	list := strings.Join(h.addresses, ",")
	mutation := appendHeader(make([]byte, 0, 512), destination, list)
	for _, header := range h.set {
		mutation = appendHeader(mutation, header.name, header.value)
	}
	for _, name := range h.remove {
		mutation = appendString(mutation, removeHeader, name)
	}
	common := sizeOf(headerMutation, len(mutation)) + sizeOf(clearRouteCache, 0)
	if body != nil {
		common += sizeOf(bodyMutation, sizeOf(mutatedBody, len(body)))
	}
	value := sizeOf(stringValue, len(list))
	entry := sizeOf(entryKey, len(destination)) + sizeOf(entryValue, value)
	space := sizeOf(structValue, sizeOf(structFields, entry))
	spaceEntry := sizeOf(entryKey, len(destinationSpace)) + sizeOf(entryValue, space)

	b := make([]byte, 0, len(mutation)+len(list)+256)
	b = appendMessage(b, dynamicMetadata, sizeOf(structFields, spaceEntry))
	b = appendMessage(b, structFields, spaceEntry)
	b = appendString(b, entryKey, destinationSpace)
	b = appendMessage(b, entryValue, space)
	b = appendMessage(b, structValue, sizeOf(structFields, entry))
	b = appendMessage(b, structFields, entry)
	b = appendString(b, entryKey, destination)
	b = appendMessage(b, entryValue, value)
	b = appendString(b, stringValue, list)
	b = appendMessage(b, answers, sizeOf(commonOf, common))
	b = appendMessage(b, commonOf, common)
	b = append(protowire.AppendTag(b, clearRouteCache, protowire.VarintType), 1)
	b = append(appendMessage(b, headerMutation, len(mutation)), mutation...)
	if body == nil {
		return &encoded{mem.BufferSlice{mem.SliceBuffer(b)}}
	}
	b = appendMessage(b, bodyMutation, sizeOf(mutatedBody, len(body)))
	b = appendMessage(b, mutatedBody, len(body))
	return &encoded{mem.BufferSlice{mem.SliceBuffer(b), mem.SliceBuffer(body)}}
}

// appendHeader appends a header that is set to a HeaderMutation.
func appendHeader(b []byte, name, value string) []byte {
	header := sizeOf(headerKey, len(name)) + sizeOf(headerRaw, len(value))
	b = appendMessage(b, setHeader, sizeOf(optionHeader, header)+sizeOf(appendAction, 0))
	b = appendMessage(b, optionHeader, header)
	b = appendString(appendString(b, headerKey, name), headerRaw, value)
	return append(protowire.AppendTag(b, appendAction, protowire.VarintType), overwrite)
}

func appendString(b []byte, field protowire.Number, s string) []byte {
	return append(appendMessage(b, field, len(s)), s...)
}

// sizeOf is how long a field of so many bytes is; of 0 bytes, one of a small number too.
func sizeOf(field protowire.Number, bytes int) int {
	return protowire.SizeTag(field) + protowire.SizeBytes(bytes)
}

// refuse answers a request in place of a server.
func refuse(r gateway.Refusal) *extproc.ProcessingResponse {
	mutation := &extproc.HeaderMutation{}
	for _, name := range sortedNames(r.Header) {
		mutation.SetHeaders = append(mutation.SetHeaders, set(name, r.Header.Get(name)))
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(envoyStatus(r.Status))}, Headers: mutation, Body: r.Body,
		Details: "tandem",
	}}}
}

// envoyStatus is a status that Envoy sends: it knows those of the RFCs alone (envoy/type/v3
// /http_status.proto), and takes others for 200.
func envoyStatus(status int) int {
	if _, known := typev3.StatusCode_name[int32(status)]; known {
		return status
	}
	return http.StatusServiceUnavailable
}

// Messages that are always the same.
var (
	// showBody asks for a body that comes behind its head's answer.
	showBody   = encode(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}})
	answerHead = encode(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{}}})
	// asItCame passes a piece of an answer on where pieces are shown and not taken.
	asItCame = encode(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{
		ResponseBody: &extproc.BodyResponse{Response: &extproc.CommonResponse{}},
	}})
	requestTrailers = encode(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}}})
	answerTrailers  = encode(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}})
)
