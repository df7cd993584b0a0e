package connector

import (
	"net/http"
	"net/url"
)

// sidecar is a decode server behind llm-d's sidecar: it is told in a header which
// prefill server to call, and does the rest itself. The header is sent, and never taken
// from a client (llm-d-router pkg/common/routing/common.go).
var sidecar = &Connector{
	DecodeDriven: true, Pairs: true, Aggregated: true, ReportsCachedTokens: true,
	decode: func(t *Transfer, _ []byte) decodeLeg {
		leg := t.legWith()
		if u, err := url.Parse(t.From.URL); err == nil { // the spec was validated
			leg.Header = http.Header{"X-Prefiller-Host-Port": {u.Host}}
		}
		return decodeLeg{request: leg, hasKV: true}
	},
}
