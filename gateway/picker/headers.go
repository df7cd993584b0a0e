package picker

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// Names of the protocol (gateway-api-inference-extension pkg/lwepp/metadata/consts.go).
const (
	destination      = "x-gateway-destination-endpoint"
	served           = "x-gateway-destination-endpoint-served"
	subsetHint       = "x-gateway-destination-endpoint-subset"
	destinationSpace = "envoy.lb"             // of metadata
	subsetSpace      = "envoy.lb.subset_hint" // likewise
)

// steering are the headers by which gateways, sidecars and engines are told where a request goes.
// A client's own are removed, and never read: with x-prefiller-host-port a client could have
// llm-d's sidecar call any host (llm-d-router pkg/common/routing/common.go, pkg/common/dp.go,
// pkg/epp/util/request/headers.go; August 2026).
var steering = []string{
	destination, served, subsetHint,
	"x-prefiller-host-port", "x-data-parallel-host-port", "x-data-parallel-rank", "x-encoder-hosts-ports",
	"x-kv-cache-source-host-port", "x-llm-d-dp-winning-ranks",
}

// steeringAndCoding are the headers that a request to a server does not have: its body goes there decoded.
var steeringAndCoding = append(slices.Clone(steering), "content-encoding")

// headers are those of a message, as Envoy sends them: names in lower case.
type headers []headerField

type headerField struct{ name, value string }

// headersOf are the headers of protobuf's message.
func headersOf(list *corev3.HeaderMap) headers {
	h := make(headers, 0, len(list.GetHeaders()))
	for _, header := range list.GetHeaders() {
		value := header.GetValue()
		if raw := header.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		h = append(h, headerField{header.GetKey(), value})
	}
	return h
}

// Get returns the first value of a header.
func (h headers) Get(name string, or ...string) string {
	for i := range h {
		if header := &h[i]; len(header.name) == len(name) && strings.EqualFold(header.name, name) {
			return header.value
		}
	}
	return strings.Join(or, "")
}

// answerHeader is what is read of an answer's headers.
func answerHeader(h headers) http.Header {
	header := make(http.Header, 3)
	for _, name := range []string{"Content-Type", "Content-Encoding", "Retry-After"} {
		if value := h.Get(name); value != "" {
			header.Set(name, value)
		}
	}
	return header
}

// statusOf is the status of an answer, 0 where it has none.
func statusOf(h headers) int {
	code, err := strconv.Atoi(h.Get(":status"))
	if err != nil {
		return 0
	}
	return code
}

// set sets a header in place of any that is there.
func set(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: strings.ToLower(name), RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// subsetOf are the addresses to which Envoy keeps the request, as a list or joined by commas; false
// where it does not. A header of the name is not looked at: clients can send one.
func subsetOf(request *extproc.ProcessingRequest) (addresses []string, limited bool) {
	value := request.GetMetadataContext().GetFilterMetadata()[subsetSpace].GetFields()[subsetHint]
	if value == nil {
		return nil, false
	}
	values := value.GetListValue().GetValues()
	if values == nil {
		return splitAddresses(value.GetStringValue()), true
	}
	for _, v := range values {
		addresses = append(addresses, splitAddresses(v.GetStringValue())...)
	}
	return addresses, true
}

func splitAddresses(text string) (addresses []string) {
	for address := range strings.SplitSeq(text, ",") {
		if address = strings.TrimSpace(address); address != "" {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// servedBy is the address of the server that gave an answer, "" where Envoy does not say.
func servedBy(request *extproc.ProcessingRequest) string {
	return request.GetMetadataContext().GetFilterMetadata()[destinationSpace].GetFields()[served].GetStringValue()
}
