package connector

import (
	"net/http"
	"net/url"
)

// sidecar is a decode server behind llm-d's sidecar: it is told in a header which
// prefill server to call, and does the rest itself. The header is sent, and never taken
// from a client (llm-d-router pkg/common/routing/common.go).
var sidecar = &Connector{
	Carried: true, Pairs: true, Alone: true, TellsCached: true,
	decode: func(t *Transfer, _ []byte) handed {
		leg := t.legWith()
		if u, err := url.Parse(t.From.URL); err == nil { // the spec was validated
			leg.Header = http.Header{"X-Prefiller-Host-Port": {u.Host}}
		}
		return handed{leg: leg, kept: true}
	},
}
