package connector

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/tandem-gateway/tandem/pd/api"
)

// sidecar is a decode server behind llm-d's sidecar: it is told in a header which
// prefill server to call, and does the rest itself. The header is sent, and never taken
// from a client (llm-d-router pkg/common/routing/common.go).
var sidecar = &Connector{
	DecodeDriven: true, Pairs: true, Aggregated: true, ReportsCachedTokens: true,
	decode: sidecarDecode,
}

// sidecarOfSGLang is the same in front of an SGLang in decode mode, which computes no prompt: without the header the
// sidecar sends it a request without a bootstrap room, and it is refused. Of newer versions' messages and
// responses behind a sidecar nothing was read. Of several answers to a prompt see sglang
// (llm-d-router pkg/sidecar/proxy/connector_sglang.go, ebab687 of August 2026).
var sidecarOfSGLang = &Connector{DecodeDriven: true, OneSample: true, Pairs: true, ReportsCachedTokens: true, Dialects: dialectsBefore22, decode: sidecarDecode}

func sidecarDecode(t *Transfer, _ api.Answer) decodeLeg {
	leg := t.legWith()
	if u, err := url.Parse(t.From.URL); err == nil { // the spec was validated
		leg.Header = http.Header{"X-Prefiller-Host-Port": {u.Host}}
	}
	return decodeLeg{request: leg, hasKV: true}
}

// PrefillUnread reports whether an answer is the sidecar's where what prefill answered is no
// JSON: a 400, in a shape of its own, with the words of Go's decoder. The client's request is
// not to blame (llm-d-router pkg/sidecar/proxy, connector_nixlv2.go and errors.go, v0.9.0).
func PrefillUnread(status int, body []byte) bool {
	var said struct{ Object, Message string }
	if status != http.StatusBadRequest || json.Unmarshal(body, &said) != nil || said.Object != "error" {
		return false
	}
	for _, begin := range []string{"invalid character", "unexpected end of JSON input", "json: cannot unmarshal"} {
		if strings.HasPrefix(said.Message, begin) {
			return true
		}
	}
	return false
}
