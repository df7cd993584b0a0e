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
	req.Header = legHeader(header, part.Header, server.Rank, attempt)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	resp, err := transport.RoundTrip(req)
	if err == nil {
		now := time.Now()
		server.RecordAlive(now)
		server.RecordORCA(resp.Header, now)
	}
	return resp, err
}

// legHeader returns the headers of a leg: those of its request, of whose values none is changed, its own, and
// those that the connector adds.
func legHeader(request, added http.Header, rank *int, attempt string) http.Header {
	h := make(http.Header, len(request)+len(added)+5) // with the trace
	for name, values := range request {
		h[name] = values
	}
	own := []string{"application/json", "tandem", attempt, ""}
	h["Content-Type"], h["User-Agent"], h["X-Request-Id"] = own[0:1:1], own[1:2:2], own[2:3:3]
	if rank != nil {
		own[3] = strconv.Itoa(*rank)
		h["X-Data-Parallel-Rank"] = own[3:4:4]
	}
	for name, values := range added {
		h[name] = values
	}
	return h
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
