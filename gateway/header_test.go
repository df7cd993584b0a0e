package gateway

import (
	"testing"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/pools/load"
)

// The fields of a head are found as Fiber finds them, whatever their case and however often they are
// there, and nothing of them is kept for the next request.
func TestFields_AreThoseThatFiberFinds(t *testing.T) {
	app := fiber.New()
	for _, sent := range [][2]string{
		{"authorization", "Bearer sk-a"}, {"AUTHORIZATION", "Bearer sk-b"}, {"x-api-key", "k"}, {"session_id", "s"}, {"Content-Encoding", "gzip"},
		{"Content-Type", "application/json"}, {"User-Agent", "agent"}, {"traceparent", ""}, {"endpoint-load-metrics-format", "JSON"}, {"x-request-id", "1"},
	} {
		c := app.AcquireCtx(&fasthttp.RequestCtx{})
		c.Request().Header.Set("Host", "h")
		c.Request().Header.Add(sent[0], sent[1])
		c.Request().Header.Add(sent[0], "another")
		f := fieldsOf(&c.Context().Request.Header)
		for _, name := range []string{
			"Authorization", "X-Api-Key", "Session_id", "Session-Id", "Content-Encoding", "Content-Type", "User-Agent", "Traceparent", "Endpoint-Load-Metrics-Format", "x-request-id",
		} {
			if got, want := f.Get(name), c.Get(name); got != want {
				t.Errorf("%v: %s is %q, Fiber has %q", sent, name, got, want)
			}
		}
		all := f.all[:cap(f.all)]
		f.release()
		for _, kept := range all {
			if kept != (field{}) {
				t.Errorf("%v is kept", kept)
			}
		}
		app.ReleaseCtx(c)
	}
}

// What is set comes to what fasthttp sets itself, also of a value that would be two headers.
func TestAnswerHeader_IsThatOfFasthttp(t *testing.T) {
	var set, ours fasthttp.ResponseHeader
	limit, remaining, reset := rateLimitHeaders(access.OfPrompt)
	for _, name := range []string{requestIDHeader, "Request-Id", timingHeader, load.ORCAHeader, "X-Tandem-Prefill", "X-Tandem-Decode", limit, remaining, reset} {
		set.Set(name, "a\r\nB: c")
		answerHeader{&ours}.Set(name, "a\r\nB: c")
		if is, want := string(ours.Peek(name)), string(set.Peek(name)); is != want {
			t.Errorf("%s is %q, fasthttp sets %q", name, is, want)
		}
	}
	if ours.Len() != set.Len() {
		t.Errorf("%d headers, fasthttp sets %d", ours.Len(), set.Len())
	}
}
