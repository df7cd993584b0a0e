package pd

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// maxAnswer bounds an answer that is read whole, in bytes.
const maxAnswer = 64 << 20

// send posts one leg and returns when the engine's headers are there. The
// transport is used bare: no redirect is followed, nothing is sent twice.
func send(ctx context.Context, transport http.RoundTripper, server *pools.Server, path, attempt string, header http.Header, part connector.LegRequest) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, part.Body.Reader())
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // net/http must not send it again by itself
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

// readAnswer reads a whole answer, up to maxAnswer.
func readAnswer(resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		return nil, errAnswerTooLong
	}
	return body, err
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

// KeepsSalt reports whether an engine keeps the KV of an API's prompts apart by their
// cache_salt. The Anthropic request classes had no such field, and what they do not know
// they drop:
//
//   - vLLM 0.32.0 has it (vllm/entrypoints/anthropic/protocol.py, #49498); earlier
//     versions and those that are not known count as dropping it.
//   - SGLang drops it (sglang/srt/entrypoints/anthropic/protocol.py and
//     request_conversion.py, main of September 2026); its other classes have it.
//   - TensorRT-LLM has it in chat alone (tensorrt_llm/serve/openai_protocol.py and
//     anthropic_protocol.py, 2026): it is dropped from Responses and messages, and
//     refused in completions.
//
// What messages are sent as instead: package messages.
func KeepsSalt(d *api.Dialect, engine pools.Identity) bool {
	switch engine.Engine {
	case "vllm":
		return d != api.Messages || engine.IsSince(0, 32)
	case "trtllm":
		return d == api.Chat
	}
	return d != api.Messages
}
