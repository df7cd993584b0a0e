package picker

import (
	"net/http"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-gateway/tandem/gateway"
)

// longestPiece is how much of a body one message carries, in bytes: some proxies refuse messages
// beyond 64 KiB (llm-d-router pkg/common/envoy/chunking.go).
const longestPiece = 62_000

// toServers sends a request to the first of some addresses that takes it: named in a header and in
// metadata, since proxies read one or the other.
func toServers(addresses []string, more []*corev3.HeaderValueOption, remove []string) *extproc.ProcessingResponse {
	list := strings.Join(addresses, ",")
	return &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: &extproc.CommonResponse{
			ClearRouteCache: true,
			HeaderMutation: &extproc.HeaderMutation{
				SetHeaders:    append([]*corev3.HeaderValueOption{set(destination, list)}, more...),
				RemoveHeaders: remove,
			},
		}}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			destinationSpace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				destination: structpb.NewStringValue(list),
			}}),
		}},
	}
}

// afterBody is toServers for a proxy that holds the head of a request back until its whole body was
// shown. The body is sent instead of the client's, nil where that goes as it is.
func afterBody(toServers *extproc.ProcessingResponse, body []byte) *extproc.ProcessingResponse {
	common := toServers.GetRequestHeaders().GetResponse()
	if body != nil {
		common.BodyMutation = &extproc.BodyMutation{Mutation: &extproc.BodyMutation_Body{Body: body}}
	}
	toServers.Response = &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: common}}
	return toServers
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
