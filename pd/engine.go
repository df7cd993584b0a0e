package pd

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/enginehttp/http1"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// post is what legs have in common.
var post = &http.Request{Method: http.MethodPost}

// send posts one leg and returns when the engine's headers are there. The
// transport is used bare: no redirect is followed, nothing is sent twice. memory is what the leg is a part of, which is
// held until it was sent; nil: that does not matter.
func send(ctx context.Context, transport http.RoundTripper, server *pools.Server, path, attempt string, header http.Header, part connector.LegRequest, memory TextMemory) (*http.Response, error) {
	var leg struct { // in one piece of memory
		req  http.Request
		to   url.URL
		body http1.Body
		own  [4]string // values of headers
	}
	if err := server.SetPageURL(&leg.to, path); err != nil {
		return nil, err
	}
	leg.body.Put(part.Body.Parts())
	if memory != nil {
		memory.Hold()
		leg.body.WhenUnread(memory)
	}
	leg.req = *post.WithContext(ctx)
	req := &leg.req
	req.URL, req.Host, req.Header = &leg.to, leg.to.Host, legHeader(header, part.Header, server.Rank, attempt, &leg.own)
	req.Body, req.ContentLength = &leg.body, int64(part.Body.Len())
	propagation.TraceContext{}.Inject(ctx, traceCarrier{propagation.HeaderCarrier(req.Header)})
	resp, err := transport.RoundTrip(req)
	if err == nil {
		now := time.Now()
		server.RecordAlive(now)
		server.RecordORCA(resp.Header, now)
	}
	return resp, err
}

// traceCarrier takes the header that names a trace without making its canonical name anew for each leg.
type traceCarrier struct{ propagation.HeaderCarrier }

// Set sets a header.
func (c traceCarrier) Set(key, value string) {
	if key == "traceparent" {
		c.HeaderCarrier["Traceparent"] = []string{value}
		return
	}
	c.HeaderCarrier.Set(key, value)
}

// legHeader returns the headers of a leg: those of its request, of whose values none is changed, its own, whose values are
// put into own, and those that the connector adds.
func legHeader(request, added http.Header, rank *int, attempt string, own *[4]string) http.Header {
	h := make(http.Header, len(request)+len(added)+5) // with the trace
	*own = [...]string{"application/json", attempt, "tandem", ""}
	h["User-Agent"] = own[2:3:3] // unless the request names another
	for name, values := range request {
		h[name] = values
	}
	h["Content-Type"], h["X-Request-Id"] = own[0:1:1], own[1:2:2]
	if rank != nil {
		own[3] = strconv.Itoa(*rank)
		h["X-Data-Parallel-Rank"] = own[3:4:4]
	}
	for name, values := range added {
		h[name] = values
	}
	return h
}

// askLoad returns a leg that asks the engine for its load where that
// pays: on prefill legs, which are never streamed and come by the dozen, so that a
// prefill server's load is as fresh as its last answer.
func askLoad(part connector.LegRequest, leg Leg, server *pools.Server) connector.LegRequest {
	format := server.AsksORCA()
	if leg != PrefillLeg || format == "" {
		return part
	}
	if part.Header == nil {
		part.Header = loadHeaders[format]
		return part
	}
	part.Header = part.Header.Clone()
	part.Header.Set(load.ORCAFormatHeader, format)
	return part
}

// loadHeaders are the headers that ask for a load, by its format. Nobody changes them.
var loadHeaders = map[string]http.Header{
	"TEXT": {load.ORCAFormatHeader: {"TEXT"}}, "JSON": {load.ORCAFormatHeader: {"JSON"}}, "BIN": {load.ORCAFormatHeader: {"BIN"}},
}
