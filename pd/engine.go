package pd

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// send posts one leg and returns when the engine's headers are there. The
// transport is used bare: no redirect is followed, nothing is sent twice.
func send(ctx context.Context, transport http.RoundTripper, server *pools.Server, path, attempt string, header http.Header, part connector.LegRequest) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, enginehttp.NewBody(part.Body.Parts()))
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(part.Body.Len())
	req.Header = header.Clone()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "tandem")
	req.Header.Set("X-Request-Id", attempt)
	if server.Rank != nil {
		req.Header.Set("X-Data-Parallel-Rank", strconv.Itoa(*server.Rank))
	}
	for name, values := range part.Header {
		req.Header[name] = values
	}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	resp, err := transport.RoundTrip(req)
	if err == nil {
		now := time.Now()
		server.RecordAlive(now)
		server.RecordORCA(resp.Header, now)
	}
	return resp, err
}

// askLoad returns the headers of a leg, which ask the engine for its load where that
// pays: on prefill legs, which are never streamed and come by the dozen, so that a
// prefill server's load is as fresh as its last answer.
func askLoad(header http.Header, leg Leg, server *pools.Server) http.Header {
	format := server.AsksORCA()
	if leg != PrefillLeg || format == "" {
		return header
	}
	header = header.Clone()
	header.Set(load.ORCAFormatHeader, format)
	return header
}
