package gateway

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"weak"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pools"
)

// proxied are the headers of a request that a proxy asks for.
type proxied http.Header

func (h proxied) Get(name string, _ ...string) string { return http.Header(h).Get(name) }

// beginPick begins a request as a proxy does.
func (g *running) beginPick(method, path string, shown AnswerBody, headers ...string) (*PickExchange, error) {
	g.t.Helper()
	h := make(http.Header)
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	e, err := g.server.BeginPick(g.t.Context(), method, path, proxied(h), shown)
	g.t.Cleanup(e.End)
	return e, err
}

// pick is a completion that the proxy has sent to its server.
func (g *running) pick(body string, shown AnswerBody, headers ...string) *PickExchange {
	g.t.Helper()
	e := g.choose(body, shown, headers...)
	e.MarkSent()
	return e
}

// choose is a completion for which a server is chosen.
func (g *running) choose(body string, shown AnswerBody, headers ...string) *PickExchange {
	g.t.Helper()
	e, err := g.beginPick("POST", "/v1/completions", shown, headers...)
	if err == nil {
		err = e.AddBody([]byte(body))
	}
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := e.Pick(nil); err != nil {
		g.t.Fatal(err)
	}
	return e
}

// reportAnswer reports an answer in pieces of so many bytes, and returns what the client gets.
func reportAnswer(e *PickExchange, status int, kind, body string, size int) string {
	e.AnswerHead(status, http.Header{"Content-Type": {kind}}, "")
	var out []byte
	for len(body) > 0 {
		n := min(size, len(body))
		out = append(out, e.AnswerPiece([]byte(body[:n]))...)
		body = body[n:]
	}
	return string(append(out, e.AnswerEnd()...))
}

// picked is how many completions that proxies asked for ended so.
func (g *running) picked(model, outcome string) float64 {
	return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", model, outcome, "picker"))
}

// remaining is what a key has left of a limit; asking costs nothing.
func (g *running) remaining(key, of string) string {
	g.t.Helper()
	return g.post(`{`, as(key)...).header.Get("X-Ratelimit-Remaining-" + of)
}

// settled fails unless nothing is held of a request of ada's, the planner was told so, and so many output
// tokens and one request less are left to her.
func settled(t *testing.T, name string, g *running, o *observed, told, output string) {
	t.Helper()
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
	if got, _ := o.take(); got != told {
		t.Errorf("%s: the planner is told %q, want %q", name, got, told)
	}
	if left, requests := g.remaining("ada", "Output-Tokens"), g.remaining("ada", "Requests"); left != output || requests != "9" {
		t.Errorf("%s: %s tokens and %s requests are left", name, left, requests)
	}
}

const (
	tenOfAll   = "ada requests-per-minute=10 prompt-tokens-per-minute=10 output-tokens-per-minute=10"
	askWhole   = `{"model":"m","prompt":"hi there"}`
	askStream  = `{"model":"m","prompt":"hi there","stream":true}`
	eventStart = `data: {"choices":[{"index":0,"text":"Hel","finish_reason":null}]}` + "\n\n"
	usageEvent = `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5}}` + "\n\n"
)

// An answer that passes by comes to the client as it is, less the usage that the client did not
// ask for, and costs what its engine counted, in whatever pieces it comes; nothing is held then.
func TestPickExchange_AnAnswer(t *testing.T) {
	var o observed
	for _, x := range []struct {
		name, body, kind, sent, got string
		output                      string // tokens that are left of ten
		told                        string
	}{
		{"whole", askWhole, "application/json", completion, completion, "7", "answered 2 2, ended 3 false"},
		{"whole, without usage", askWhole, "application/json", `{"choices":[]}`, `{"choices":[]}`, "10", "answered 2 2, ended -1 false"},
		{"a stream", askStream, "text/event-stream", streamed, strings.Replace(streamed, usageEvent, "", 1), "7", "answered 2 2, ended 3 false"},
		{"a stream without usage", askStream, "text/event-stream", strings.Replace(streamed, usageEvent, "", 1), strings.Replace(streamed, usageEvent, "", 1), "8", "answered 2 2, ended 2 false"},
		{"a stream of no tokens", askStream, "text/event-stream", strings.Replace(streamed, `"completion_tokens":3`, `"completion_tokens":0`, 1), strings.Replace(streamed, usageEvent, "", 1), "10", "answered 2 2, ended 0 false"},
	} {
		for _, size := range []int{1, 50, 1 << 20} {
			of := usual(t, tenOfAll)
			of.before = func(s *Server) { s.SetObserver(o.observe) }
			g := run(t, of, complete().roundTrip, alone(t))
			e := g.pick(x.body, AnswerEdited, as("ada")...)
			if got := reportAnswer(e, 200, x.kind, x.sent, size); got != x.got {
				t.Errorf("%s in pieces of %d: the client gets %q", x.name, size, got)
			}
			settled(t, x.name, g, &o, x.told, x.output)
			e.End()
			e.AnswerEnd()
			if n := g.picked("m", "ok"); n != 1 || g.picked("m", "client_gone") != 0 {
				t.Errorf("%s: %v are counted", x.name, n)
			}
			if d, found := g.pd.Decisions.Find(e.ID()); !found || x.output == "7" && d.Choices[0].Measured.Usage.Output.Tokens != 3 {
				t.Errorf("%s: the decision is %+v", x.name, d)
			}
		}
	}
}

// The vectors that vLLM sends as numbers alone are an answer too.
func TestPickExchange_VectorsInBytes(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	e, err := g.beginPick("POST", "/v1/embeddings", AnswerEdited)
	if err == nil {
		err = e.AddBody([]byte(`{"model":"m","input":"hi there","encoding_format":"bytes"}`))
	}
	if err == nil {
		_, err = e.Pick(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	e.MarkSent()
	const numbers = "\x00\x80\xff{"
	if got := reportAnswer(e, 200, "application/octet-stream", numbers, 3); got != numbers {
		t.Errorf("the client gets %q", got)
	}
	requests := g.server.metrics.requests
	if ok, broken := requests.WithLabelValues("embeddings", "m", "ok", "picker"), requests.WithLabelValues("embeddings", "m", "broken_stream", "picker"); testutil.ToFloat64(ok) != 1 || testutil.ToFloat64(broken) != 0 {
		t.Errorf("%v are counted as answered, %v as broken", testutil.ToFloat64(ok), testutil.ToFloat64(broken))
	}
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
}

// A key is charged with each event as it passes by.
func TestPickExchange_ChargesAsItGoes(t *testing.T) {
	g := run(t, usual(t, tenOfAll), complete().roundTrip, alone(t))
	e := g.pick(askStream, AnswerEdited, as("ada")...)
	e.AnswerHead(200, http.Header{"Content-Type": {"text/event-stream"}}, "")
	for i, want := range []string{"9", "7"} {
		e.AnswerPiece([]byte(strings.Repeat(eventStart, i+1)))
		if left := g.remaining("ada", "Output-Tokens"); left != want {
			t.Errorf("after piece %d %s output tokens are left, want %s", i, left, want)
		}
	}
}

// What closes an answer comes right behind its last token, also in one piece with it: that is no time between tokens.
func TestPickExchange_WhatClosesAnAnswerIsNoGap(t *testing.T) {
	for _, size := range []int{1, 10_000} {
		g := run(t, usual(t), complete().roundTrip, alone(t))
		e := g.pick(askStream, AnswerEdited)
		closes := `data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		reportAnswer(e, 200, "text/event-stream", eventStart+eventStart+eventStart+closes, size)
		if got := g.observations("tandem_itl_seconds"); got != 2 {
			t.Errorf("in pieces of %d: %d times between three tokens", size, got)
		}
	}
}

// observations is how many a histogram has.
func (g *running) observations(name string) (n uint64) {
	g.t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				n += m.GetHistogram().GetSampleCount()
			}
		}
	}
	return n
}

// The planner learns of the first token once, with the piece that has it, and not with a later
// one that has as many events.
func TestPickExchange_TheFirstTokenIsReportedOnce(t *testing.T) {
	var o observed
	of := usual(t)
	of.before = func(s *Server) { s.SetObserver(o.observe) }
	g := run(t, of, complete().roundTrip, alone(t))
	e := g.pick(askStream, AnswerEdited)
	e.AnswerHead(200, http.Header{"Content-Type": {"text/event-stream"}}, "")
	e.AnswerPiece([]byte(": a comment\n\n"))
	if told, _ := o.take(); told != "" {
		t.Errorf("without an event it is told %q", told)
	}
	for i, want := range []string{"answered 2 2", "", ""} {
		e.AnswerPiece([]byte(eventStart))
		if told, _ := o.take(); told != want {
			t.Errorf("with event %d it is told %q, want %q", i, told, want)
		}
	}
}

// An answer that is no success counts for what it is, on the server and for the client's key: all
// is given back where the service failed, the tokens where the request was at fault.
func TestPickExchange_AnAnswerThatIsNoSuccess(t *testing.T) {
	var o observed
	for _, x := range []struct {
		name, body       string
		status           int
		outcome, told    string
		requests, output string // that are left of ten
		decision         string
	}{
		{"an engine's failure", "no", 500, "error", "ended -1 true", "10", "10", "status 500"},
		{"the request's own fault", `{"error":{"message":"no"}}`, 422, "refused", "ended -1 false", "9", "10", "status 422"},
		{"an engine's key", "", 401, "unauthorized", "ended -1 false", "9", "10", "status 401"},
		{"a busy engine", "", 503, "overloaded", "refused", "10", "10", "status 503"},
		{"a busy engine that asks to come back", "", 429, "overloaded", "refused", "10", "10", "status 429"},
		{"an engine that waited too long", "", 408, "overloaded", "refused", "10", "10", "status 408"},
		{"a server that the proxy cannot reach", "upstream connect error or disconnect/reset before headers. reset reason: connection timeout", 503, "no_server", "refused", "10", "10", errProxyLost},
		{"no server of the proxy's", "no healthy upstream", 503, "no_server", "refused", "10", "10", errProxyLost},
		{"an engine that says more", "no healthy upstream of mine", 503, "overloaded", "refused", "10", "10", "status 503"},
		{"an engine that fails with a proxy's words", "no healthy upstream", 500, "error", "ended -1 true", "10", "10", "status 500"},
	} {
		of := usual(t, tenOfAll)
		of.before = func(s *Server) { s.SetObserver(o.observe) }
		g := run(t, of, complete().roundTrip, alone(t))
		e := g.pick(askWhole, AnswerEdited, as("ada")...)
		if got := reportAnswer(e, x.status, "text/plain", x.body, 7); got != x.body {
			t.Errorf("%s: the client gets %q", x.name, got)
		}
		nothingHeld(t, g.queue, g.fleet.Servers()[0])
		if told, _ := o.take(); told != x.told {
			t.Errorf("%s: the planner is told %q, want %q", x.name, told, x.told)
		}
		if requests, output := g.remaining("ada", "Requests"), g.remaining("ada", "Output-Tokens"); requests != x.requests || output != x.output {
			t.Errorf("%s: %s requests and %s tokens are left, want %s and %s", x.name, requests, output, x.requests, x.output)
		}
		e.End()
		if n := g.picked("m", x.outcome); n != 1 || g.picked("m", "client_gone") != 0 {
			t.Errorf("%s: %v are counted as %s", x.name, n, x.outcome)
		}
		if d, found := g.pd.Decisions.Find(e.ID()); !found || !strings.Contains(d.Choices[0].Outcome, x.decision) {
			t.Errorf("%s: the decision is %q, want %q", x.name, d.Choices[0].Outcome, x.decision)
		}
	}
}

const errProxyLost = "the proxy lost the connection"

// Of an error's body only as much is kept as clients of the gateway itself would get.
func TestPickExchange_KeepsTheBeginningOfAnErrorOnly(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	e := g.pick(askWhole, AnswerEdited)
	e.AnswerHead(500, nil, "")
	piece := []byte(strings.Repeat("x", 40<<10))
	for range 3 {
		if got := e.AnswerPiece(piece); len(got) != len(piece) {
			t.Errorf("the client gets %d bytes", len(got))
		}
	}
	if len(e.answer.failed) != maxErrorBody {
		t.Errorf("%d bytes are kept", len(e.answer.failed))
	}
}

// A stream that ends before it is complete is broken, and costs what came of it.
func TestPickExchange_ABrokenStream(t *testing.T) {
	var o observed
	for name, more := range map[string]string{
		"is cut off": "", "ends with the engine's error": `data: {"error":{"message":"no","code":500}}` + "\n\n", "is cut off amid an event": `data: {"choi`,
	} {
		of := usual(t, tenOfAll)
		of.before = func(s *Server) { s.SetObserver(o.observe) }
		g := run(t, of, complete().roundTrip, alone(t))
		e := g.pick(askStream, AnswerEdited, as("ada")...)
		if got := reportAnswer(e, 200, "text/event-stream", eventStart+more, 1<<20); got != eventStart+more {
			t.Errorf("a stream that %s: the client gets %q", name, got)
		}
		nothingHeld(t, g.queue, g.fleet.Servers()[0])
		if told, _ := o.take(); told != "answered 2 2, ended 1 true" {
			t.Errorf("a stream that %s: the planner is told %q", name, told)
		}
		if left := g.remaining("ada", "Output-Tokens"); left != "9" {
			t.Errorf("a stream that %s: %s tokens are left", name, left)
		}
		if n := g.picked("m", "broken_stream"); n != 1 {
			t.Errorf("a stream that %s: %v are counted", name, n)
		}
	}
}

// A proxy that reports no more has a client that left, unless the answer was there: whenever it
// stops, all that was held is given back, and the key pays for what came.
func TestPickExchange_AProxyThatStops(t *testing.T) {
	var o observed
	stream, plain := http.Header{"Content-Type": {"text/event-stream"}}, http.Header{"Content-Type": {"application/json"}}
	for _, x := range []struct {
		name    string
		shown   AnswerBody
		reports func(*PickExchange)
		outcome string
		output  string // tokens that are left
		told    string
	}{
		{"before the answer", AnswerEdited, func(*PickExchange) {}, "client_gone", "10", "ended -1 false"},
		{"after its head", AnswerEdited, func(e *PickExchange) { e.AnswerHead(200, stream, "") }, "client_gone", "10", "ended -1 false"},
		{"after the head of a failure", AnswerEdited, func(e *PickExchange) { e.AnswerHead(500, plain, "") }, "client_gone", "10", "ended -1 false"},
		{"amid a stream", AnswerEdited, func(e *PickExchange) {
			e.AnswerHead(200, stream, "")
			e.AnswerPiece([]byte(eventStart))
		}, "client_gone", "9", "answered 2 2, ended 1 false"},
		{"behind a stream's end", AnswerEdited, func(e *PickExchange) {
			e.AnswerHead(200, stream, "")
			e.AnswerPiece([]byte(streamed))
		}, "ok", "7", "answered 2 2, ended 3 false"},
		{"behind the head of an answer that it hides", AnswerHidden, func(e *PickExchange) { e.AnswerHead(200, stream, "") }, "ok", "10", "answered 2 2, ended -1 false"},
		{"behind the head of a failure that it hides", AnswerHidden, func(e *PickExchange) { e.AnswerHead(500, plain, "") }, "client_gone", "10", "ended -1 false"},
		{"before the head of an answer that it hides", AnswerHidden, func(*PickExchange) {}, "client_gone", "10", "ended -1 false"},
	} {
		of := usual(t, tenOfAll)
		of.before = func(s *Server) { s.SetObserver(o.observe) }
		g := run(t, of, complete().roundTrip, alone(t))
		e := g.pick(askStream, x.shown, as("ada")...)
		if _, inFlight := g.queue.Len(); inFlight != 1 {
			t.Errorf("%s: %d are in flight before it stops", x.name, inFlight)
		}
		x.reports(e)
		e.End()
		settled(t, x.name, g, &o, x.told, x.output)
		e.End()
		if n := g.picked("m", x.outcome); n != 1 {
			t.Errorf("%s: %v are counted as %s", x.name, n, x.outcome)
		}
	}
}

// Before the servers are chosen there is nothing to give back but the body's memory, and what the
// request was charged.
func TestPickExchange_AProxyThatStopsBeforeTheChoice(t *testing.T) {
	g := run(t, usual(t, "ada concurrent-requests=1"), complete().roundTrip, alone(t))
	e, err := g.beginPick("POST", "/v1/completions", AnswerEdited, append(as("ada"), "Content-Length", "200000")...)
	if err == nil {
		err = e.AddBody([]byte(strings.Repeat(" ", 2*freeBytes)))
	}
	if err != nil || g.server.bodies.Taken() == 0 {
		t.Fatalf("%d bytes are counted, %v", g.server.bodies.Taken(), err)
	}
	e.End()
	if now := g.server.bodies.Taken(); now != 0 {
		t.Errorf("%d bytes stay counted", now)
	}
	if n := g.picked("unknown", "client_gone"); n != 1 {
		t.Errorf("%v are counted", n)
	}
	e, err = g.beginPick("POST", "/v1/completions", AnswerEdited, as("ada")...)
	if err == nil {
		err = e.AddBody([]byte(askWhole))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.admit(); err != nil { // it is charged, and waits for servers
		t.Fatal(err)
	}
	if got := g.post(askWhole, as("ada")...); got.status != 429 {
		t.Errorf("beside the one that its key allows: %d", got.status)
	}
	e.End()
	if got := g.post(askWhole, as("ada")...); got.status != 200 {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
}

// A refused request leaves the budget of bodies as it found it, whatever refuses it.
func TestPickExchange_ARefusalGivesItsBytesBackOnce(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for _, body := range []string{`{"model":"m"`, `{"model":"other","prompt":"hi"}`} {
		e, err := g.beginPick("POST", "/v1/completions", AnswerEdited)
		if err == nil {
			err = e.AddBody([]byte(body + strings.Repeat(" ", 4*freeBytes)))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Pick(nil)
		if err == nil {
			t.Fatalf("%s: it has a server", body)
		}
		e.Refuse(err)
		e.End()
		if now := g.server.bodies.Taken(); now != 0 {
			t.Errorf("%s: %d bytes are counted", body, now)
		}
	}
}

// What a proxy asks for in vain is answered in the shape of the API, with the headers of any
// refusal, and counted once.
func TestPickExchange_Refuses(t *testing.T) {
	of := usual(t, "ada requests-per-minute=1", "bob")
	of.config = func(c *Config) { c.MaxBody, c.MaxArriving = 300<<10, 100<<10 }
	const good = `{"model":"m","prompt":"hi"}`
	for _, x := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code, outcome            string
		header, value            string
	}{
		{"an API that is not served", "POST", "/v1/files", good, as("bob"), 404, "not_found", "bad_request", "X-Should-Retry", "false"},
		{"no such path", "POST", "/v1/nothing", good, as("bob"), 404, "not_found", "bad_request", "X-Should-Retry", "false"},
		{"an API that no server speaks", "POST", "/generate", good, as("bob"), 404, "not_found", "bad_request", "Www-Authenticate", ""},
		{"the wrong method", "PUT", "/v1/completions", good, as("bob"), 405, "method_not_allowed", "bad_request", "Retry-After", ""},
		{"no key", "POST", "/v1/completions", good, nil, 401, "invalid_api_key", "unauthorized", "Www-Authenticate", "Bearer"},
		{"an unknown coding", "POST", "/v1/completions", good, append(as("bob"), "Content-Encoding", "lzma"), 415, "", "bad_request", "Accept-Encoding", acceptedCodings},
		{"bad JSON", "POST", "/v1/completions", `{"model"`, as("bob"), 400, "", "bad_request", "X-Should-Retry", "false"},
		{"an unknown model", "POST", "/v1/completions", `{"model":"other","prompt":"hi"}`, as("bob"), 404, "model_not_found", "bad_request", "Content-Type", "application/json"},
		{"a large body", "POST", "/v1/completions", good + strings.Repeat(" ", 300<<10), as("bob"), 413, "request_too_large", "bad_request", "X-Should-Retry", "false"},
		{"a body for which there is no room", "POST", "/v1/completions", good + strings.Repeat(" ", 200<<10), as("bob"), 429, "overloaded", "overloaded", "X-Should-Retry", ""},
	} {
		g := run(t, of, complete().roundTrip, alone(t))
		e, err := g.beginPick(x.method, x.path, AnswerEdited, append([]string{"X-Request-Id", "mine"}, x.headers...)...)
		if err == nil {
			err = e.AddBody([]byte(x.body))
		}
		if err == nil {
			_, err = e.Pick(nil)
		}
		if err == nil {
			t.Errorf("%s: it has a server", x.name)
			continue
		}
		got := e.Refuse(err)
		if got.Status != x.status || gjson.GetBytes(got.Body, "error.code").String() != x.code || gjson.GetBytes(got.Body, "error.message").String() == "" || got.Header.Get("X-Request-Id") != "mine" || got.Header.Get(x.header) != x.value {
			t.Errorf("%s: %d %v %s", x.name, got.Status, got.Header, got.Body)
		}
		e.End()
		counted := 0.0
		for _, d := range []string{"completions", "chat"} {
			counted += testutil.ToFloat64(g.server.metrics.requests.WithLabelValues(d, "unknown", x.outcome, "picker"))
		}
		if counted != 1 {
			t.Errorf("%s: %v are counted", x.name, counted)
		}
		nothingHeld(t, g.queue, g.fleet.Servers()[0])
		if now := g.server.bodies.Taken(); now != 0 {
			t.Errorf("%s: %d bytes stay counted", x.name, now)
		}
	}
}

// Those who wait for the service get 429, as endpoint pickers say it; 503 is for servers that are
// not there. A key's limit comes with what is left of it.
func TestPickExchange_RefusesForLackOfCapacity(t *testing.T) {
	g := run(t, usual(t, "ada requests-per-minute=1"), complete().roundTrip, alone(t))
	reportAnswer(g.pick(askWhole, AnswerEdited, as("ada")...), 200, "application/json", completion, 1<<20)
	e, err := g.beginPick("POST", "/v1/completions", AnswerEdited, as("ada")...)
	if err == nil {
		err = e.AddBody([]byte(askWhole))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Pick(nil)
	if got := e.Refuse(err); got.Status != 429 || got.Header.Get("X-Ratelimit-Remaining-Requests") != "0" || got.Header.Get("Retry-After") == "" {
		t.Errorf("a key's limit: %d %v %s", got.Status, got.Header, got.Body)
	}
	none := run(t, usual(t), complete().roundTrip)
	e, err = none.beginPick("POST", "/v1/completions", AnswerEdited)
	if err == nil {
		err = e.AddBody([]byte(askWhole))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Pick(nil)
	if got := e.Refuse(err); got.Status != 503 || gjson.GetBytes(got.Body, "error.code").String() != "no_server" {
		t.Errorf("without servers: %d %s", got.Status, got.Body)
	}
}

// A path has the shape of its API, also below it, and a query does not change it.
func TestPickExchange_AnAPIByItsPath(t *testing.T) {
	native := alone(t)
	native.Native = true
	g := run(t, usual(t), complete().roundTrip, native)
	for path, want := range map[string]*api.Dialect{
		"/v1/completions": api.Completions, "/v1/completions?a=b": api.Completions, "/v1/messages?beta=true": api.Messages, "/generate": api.Generate,
		// Behind the prefix of a route, which Envoy rewrites when the picker has been asked.
		"/qwen/v1/completions": api.Completions, "/team/qwen/v1/chat/completions?a=b": api.Chat, "/openai/chat/completions": api.Chat, "/openai/completions": api.Completions,
		"/qwen/v1/messages/count_tokens": api.CountTokens, "/qwen/generate": api.Generate,
	} {
		if e, err := g.beginPick("POST", path, AnswerEdited); err != nil || e.x.dialect != want {
			t.Errorf("%s is taken for %s, %v", path, e.x.dialect.Name, err)
		}
	}
	// A client chooses the path, however many parts it has.
	slashes := strings.Repeat("/", 60<<10)
	if n := testing.AllocsPerRun(1, func() { g.server.dialectOf(slashes) }); n > 10 {
		t.Errorf("a path of 60 KB makes %v allocations", n)
	}
	for path, anthropic := range map[string]bool{"/v1/messages/batches": true, "/v1/nothing": false, "": false, "/v1/chat/completions/": false, "/xcompletions": false, "/a/b/c": false} {
		e, err := g.beginPick("POST", path, AnswerEdited)
		if err == nil {
			t.Errorf("%q is served", path)
			continue
		}
		got := e.Refuse(err)
		if (gjson.GetBytes(got.Body, "type").String() == "error") != anthropic || (got.Header.Get("Request-Id") != "") != anthropic {
			t.Errorf("%q: %v %s", path, got.Header, got.Body)
		}
	}
}

// A body is as long as its header says, -1 where that says nothing that can be so.
func TestAnnouncedLength(t *testing.T) {
	for text, want := range map[string]int{"": -1, "0": 0, "17": 17, "-1": -1, "x": -1} {
		if got := announcedLength(proxied{"Content-Length": {text}}); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

// Where the proxy does not let the gateway edit an answer the engine is not asked for what would
// have to be hidden; where the client asked for it it comes.
func TestPickExchange_AsksForUsageOnlyWhereItCanHideIt(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for shown, asked := range map[AnswerBody]bool{AnswerEdited: true, AnswerShown: false, AnswerHidden: false} {
		e := g.choose(askStream, shown)
		if sent := e.pick.Body().Bytes(); gjson.GetBytes(sent, "stream_options.include_usage").Bool() != asked || gjson.GetBytes(sent, "stream_options").Exists() != asked {
			t.Errorf("shown as %d: the engine gets %s", shown, sent)
		}
		e.MarkSent()
		all := reportAnswer(e, 200, "text/event-stream", streamed, 1<<20)
		if (all == streamed) == asked {
			t.Errorf("shown as %d: the client gets %q", shown, all)
		}
		e = g.choose(`{"model":"m","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}`, shown)
		if sent := e.pick.Body().Bytes(); !gjson.GetBytes(sent, "stream_options.include_usage").Bool() {
			t.Errorf("shown as %d, the client asks for usage: the engine gets %s", shown, sent)
		}
		e.MarkSent()
		if all := reportAnswer(e, 200, "text/event-stream", streamed, 1<<20); all != streamed {
			t.Errorf("shown as %d, the client asks for usage: it gets %q", shown, all)
		}
	}
}

// An answer with a coding is not looked into; it was served when it ends.
func TestPickExchange_ACodedAnswer(t *testing.T) {
	for coding, output := range map[string]string{"gzip": "10", "identity": "7", "": "7"} {
		g := run(t, usual(t, tenOfAll), complete().roundTrip, alone(t))
		e := g.pick(askWhole, AnswerEdited, as("ada")...)
		e.AnswerHead(200, http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {coding}}, "")
		got := string(e.AnswerPiece([]byte(completion))) + string(e.AnswerEnd())
		if left := g.remaining("ada", "Output-Tokens"); got != completion || left != output || g.picked("m", "ok") != 1 {
			t.Errorf("%q: the client gets %q, %s tokens are left, %v are served", coding, got, left, g.picked("m", "ok"))
		}
		nothingHeld(t, g.queue, g.fleet.Servers()[0])
	}
}

// An answer has one head, and none before its request has a server.
func TestPickExchange_OneHead(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	e, err := g.beginPick("POST", "/v1/completions", AnswerEdited)
	if err != nil {
		t.Fatal(err)
	}
	e.AnswerHead(200, nil, "")
	if out := e.AnswerEnd(); out != nil || e.answer.status != 0 || g.picked("m", "ok")+g.picked("unknown", "ok") != 0 {
		t.Errorf("before its request: %q, status %d", out, e.answer.status)
	}
	e = g.pick(askWhole, AnswerEdited)
	e.AnswerHead(200, http.Header{"Content-Type": {"application/json"}}, "")
	e.AnswerHead(500, nil, "")
	e.AnswerPiece([]byte(completion))
	e.AnswerEnd()
	if g.picked("m", "ok") != 1 {
		t.Error("a second head is believed")
	}
}

// A request that the proxy sent to another server than the first is that one's.
func TestPickExchange_AnAnswerOfAnotherServer(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t), alone(t))
	e := g.pick(askStream, AnswerEdited)
	first := e.pick.Decode()
	other := g.fleet.Servers()[0]
	if other.ID() == first.ID() {
		other = g.fleet.Servers()[1]
	}
	e.AnswerHead(200, http.Header{"Content-Type": {"text/event-stream"}}, other.Address())
	if e.pick.Decode().ID() != other.ID() {
		t.Errorf("%s has it, want %s", e.pick.Decode().ID(), other.ID())
	}
	e.End()
	nothingHeld(t, g.queue, first)
	nothingHeld(t, g.queue, other)
}

// A request without a body goes to the server with the least to do, of those that are up, decode,
// and are in the subset.
func TestPickAny(t *testing.T) {
	prefill, down := alone(t), alone(t)
	prefill.Role = pools.Prefill
	g := run(t, usual(t, "ada"), complete().roundTrip, alone(t), alone(t), prefill)
	key := proxied{"Authorization": {"Bearer sk-ada"}}
	decoding := map[string]*pools.Server{}
	for _, s := range g.fleet.Servers() {
		if s.Role.Serves(pools.Decode) {
			decoding[s.ID()] = s
		}
	}
	busy := g.pick(askWhole, AnswerEdited, as("ada")...).pick.Decode()
	delete(decoding, busy.ID())
	for id := range decoding {
		if got, err := g.server.PickAny(t.Context(), "GET", "/v1/models", key, nil); err != nil || got.ID() != id {
			t.Errorf("beside one that is busy: %v, %v, want %s", got, err, id)
		}
	}
	if got, err := g.server.PickAny(t.Context(), "GET", "/v1/models", key, pools.NewSubset([]string{busy.Address()})); err != nil || got.ID() != busy.ID() {
		t.Errorf("the busy one is all that the proxy allows: %v, %v", got, err)
	}
	for name, address := range map[string]string{"nobody's": "10.1.1.1:80", "of one that prefills only": strings.TrimPrefix(prefill.URL, "http://")} {
		var none *pd.NoServerError
		if got, err := g.server.PickAny(t.Context(), "GET", "/v1/models", key, pools.NewSubset([]string{address})); !errors.As(err, &none) || none.Role != pools.Decode {
			t.Errorf("an address %s: %v, %v", name, got, err)
		}
	}
	if _, err := g.server.PickAny(t.Context(), "GET", "/v1/models", proxied{}, nil); !errors.Is(err, errNoKey) {
		t.Errorf("without a key: %v", err)
	}
	if _, err := g.server.PickAny(t.Context(), "OPTIONS", "/v1/chat/completions", proxied{}, nil); !errors.Is(err, errNoKey) {
		t.Errorf("what is no preflight, without a key: %v", err)
	}
	preflight := proxied{"Origin": {"https://chat.example.com"}, "Access-Control-Request-Method": {"POST"}}
	if _, err := g.server.PickAny(t.Context(), "OPTIONS", "/v1/chat/completions", preflight, nil); err != nil {
		t.Errorf("a browser's preflight, which has no key: %v", err)
	}
	if _, err := g.server.PickAny(t.Context(), "GET", "/v1/models", preflight, nil); !errors.Is(err, errNoKey) {
		t.Errorf("a request with the headers of a preflight, without a key: %v", err)
	}
	down.URL = "http://127.0.0.1:1" // nothing listens there
	if err := g.fleet.Apply([]pools.Spec{down}); err != nil {
		t.Fatal(err)
	}
	if got, err := g.server.PickAny(t.Context(), "GET", "/v1/models", key, nil); err == nil {
		t.Errorf("one that is not up: %s", got.ID())
	}
}

// An engine is asked for models and health without a body, and for nothing that is for its operators alone.
func TestPickAny_OfPathsForClients(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for _, path := range []string{"/v1/models", "/v1/models?x=1", "/v1/models/org/model", "/qwen/v1/models", "/openai/models", "/health"} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			if _, err := g.server.PickAny(t.Context(), method, path, proxied{}, nil); err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			}
		}
	}
	for _, request := range []string{"GET /flush_cache", "GET /release_memory_occupation", "GET /metrics", "GET /server_info", "GET /v1/responses/1", "HEAD /metrics", "GET /flush_cache?/v1/models/", "GET /v1/models/../../flush_cache", "GET /v1/models/%2E./%2e%2e/flush_cache",
		"DELETE /v1/models/model", "PUT /v1/models", "GET ", "GET /", "GET /models/flush_cache", "GET /xmodels"} {
		method, path, _ := strings.Cut(request, " ")
		if got, err := g.server.PickAny(t.Context(), method, path, proxied{}, nil); !errors.Is(err, errNotFound) {
			t.Errorf("%s goes to %v, %v", request, got, err)
		}
	}
}

// A request without a body that gets no server is answered like any other, and counted.
func TestRefusePick(t *testing.T) {
	g := run(t, usual(t, "ada"), complete().roundTrip)
	for _, x := range []struct {
		err     error
		status  int
		outcome string
		header  string
	}{{errNoKey, 401, "unauthorized", "Www-Authenticate"}, {&pd.NoServerError{Role: pools.Decode}, 503, "no_server", "Retry-After"}, {queue.ErrFull, 429, "overloaded", "Retry-After"}, {errNotFound, 404, "bad_request", "X-Request-Id"}} {
		got := g.server.RefusePick(x.err, proxied{"X-Request-Id": {"mine"}})
		if got.Status != x.status || got.Header.Get("X-Request-Id") != "mine" || got.Header.Get(x.header) == "" || gjson.GetBytes(got.Body, "error.message").String() == "" {
			t.Errorf("%v: %d %v %s", x.err, got.Status, got.Header, got.Body)
		}
		if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("none", "none", x.outcome, "picker")); n != 1 {
			t.Errorf("%v are counted as %s", n, x.outcome)
		}
	}
}

// A panic costs its own request, and nothing stays held.
func TestPickExchange_Panicked(t *testing.T) {
	g := run(t, usual(t, "ada concurrent-requests=1"), complete().roundTrip, alone(t))
	e := g.pick(askWhole, AnswerEdited, as("ada")...)
	e.Panicked("at 10.11.12.13")
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
	if n := g.picked("m", "error"); n != 1 {
		t.Errorf("%v are counted", n)
	}
	if got := g.post(askWhole, as("ada")...); got.status != 200 {
		t.Errorf("another of its key: %d %s", got.status, got.body)
	}
}

// A client that leaves while its request waits is nobody to answer; where the gateway stops it is
// told so.
func TestPickExchange_EndsWhileItWaits(t *testing.T) {
	for name, x := range map[string]struct {
		end       func(*running, *PickExchange)
		cancelled bool
		status    int
		outcome   string
	}{
		"the client leaves": {func(_ *running, e *PickExchange) { e.Cancel() }, true, 499, "client_gone"},
		"the gateway stops": {func(g *running, _ *PickExchange) { g.server.life.End(errStopping) }, false, 503, "stopped"},
	} {
		g := run(t, usual(t), complete().roundTrip, alone(t))
		e, err := g.beginPick("POST", "/v1/completions", AnswerEdited, "Content-Encoding", "gzip")
		if err == nil {
			err = e.AddBody([]byte(encoded(t, askWhole, gzipped)))
		}
		if err != nil {
			t.Fatal(err)
		}
		for range cap(g.server.decoding) { // it waits for a turn to decode
			g.server.decoding <- struct{}{}
		}
		x.end(g, e)
		<-e.x.ctx.Done()
		_, err = e.Pick(nil)
		if err == nil || e.Cancelled() != x.cancelled {
			t.Errorf("%s: %v, cancelled %v", name, err, e.Cancelled())
			continue
		}
		if got := e.Refuse(err); got.Status != x.status || g.picked("unknown", x.outcome) != 1 {
			t.Errorf("%s: %d %s", name, got.Status, got.Body)
		}
		nothingHeld(t, g.queue, g.fleet.Servers()[0])
	}
}

// A request belongs to the client's trace, and the engine's spans to it; its spans say how it
// ended.
func TestPickExchange_Spans(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	of := usual(t)
	of.tracer = sdk.NewTracerProvider(sdk.WithSyncer(spans)).Tracer("")
	g := run(t, of, complete().roundTrip, alone(t))
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	named := func(name string) (found tracetest.SpanStub) {
		for _, span := range spans.GetSpans() {
			if span.Name == name {
				found = span
			}
		}
		return found
	}
	e := g.pick(askWhole, AnswerEdited, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	if parent := e.TraceHeader(); !strings.HasPrefix(parent, "00-"+trace+"-") || strings.Contains(parent, "00f067aa0ba902b7") {
		t.Errorf("the engine gets %q", parent)
	}
	reportAnswer(e, 200, "application/json", completion, 1<<20)
	span := named("request")
	if span.SpanContext.TraceID().String() != trace || span.Parent.SpanID().String() != "00f067aa0ba902b7" || span.Status.Code != codes.Unset {
		t.Errorf("one that was served: %v in trace %v below %v", span.Status, span.SpanContext.TraceID(), span.Parent.SpanID())
	}
	if !slices.Contains(span.Attributes, attribute.String("tandem.path", "picker")) {
		t.Errorf("nothing says that it was picked for: %v", span.Attributes)
	}
	if span := named("admit"); span.Name == "" || span.Status.Code != codes.Unset {
		t.Errorf("what let it in: %v", span.Status)
	}
	for _, x := range []struct {
		reports func(e *PickExchange)
		code    codes.Code
		outcome string
	}{
		{func(e *PickExchange) { reportAnswer(e, 500, "text/plain", "no", 9) }, codes.Error, "error"},
		{func(e *PickExchange) { e.End() }, codes.Unset, ""}, // its client has left
	} {
		spans.Reset()
		x.reports(g.pick(askWhole, AnswerEdited))
		if span := named("request"); span.Status.Code != x.code || span.Status.Description != x.outcome {
			t.Errorf("%s: %v", x.outcome, span.Status)
		}
	}
	e, err := g.beginPick("POST", "/v1/completions", AnswerEdited)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Pick(nil); err == nil {
		t.Fatal("nothing is let in")
	}
	if span := named("admit"); span.Status.Code != codes.Error || len(span.Attributes) != 1 || span.Attributes[0].Value.AsInt64() != http.StatusBadRequest {
		t.Errorf("what refused it: %v %v", span.Status, span.Attributes)
	}
}

// A message that engines would have to see as a chat cannot be sent by a proxy, which sends what
// it has.
func TestPickExchange_TranslatesNothing(t *testing.T) {
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
	g := run(t, usual(t, "ada"), complete().roundTrip, spec)
	e, err := g.beginPick("POST", "/v1/messages", AnswerEdited, as("ada")...)
	if err == nil {
		err = e.AddBody([]byte(hello))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Pick(nil); !errors.Is(err, errTranslated) {
		t.Errorf("%v", err)
	}
}

// So it is with a message that the model's pairs do not take.
func TestPickExchange_RefusesWhatNoPairTakes(t *testing.T) {
	spec := alone(t)
	spec.URL, spec.Connector = listing(t, `{"data":[{"id":"m","owned_by":"sglang"}]}`), "sglang"
	g := run(t, usual(t), complete().roundTrip, spec)
	e, err := g.beginPick("POST", "/v1/messages", AnswerEdited)
	if err == nil {
		err = e.AddBody([]byte(hello))
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err = e.Pick(nil); statusOfRefusal(err) != http.StatusBadRequest || !strings.Contains(err.Error(), "do not serve /v1/messages. Use /v1/chat/completions.") {
		t.Errorf("%v", err)
	}
}

// Where there are keys here the client's is not for engines.
func TestServer_HidesCredentials(t *testing.T) {
	for _, keys := range [][]string{nil, {"ada"}} {
		if hides := run(t, usual(t, keys...), complete().roundTrip).server.HidesCredentials(); hides != (keys != nil) {
			t.Errorf("with %d keys: %v", len(keys), hides)
		}
	}
}

// parent is the context of a proxy's request.
type parent struct{ context.Context }

// A request that is over is kept by nothing that lives on, neither the gateway nor the stream that
// brought it.
func TestPickExchange_IsNotKept(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip)
	begin := func() weak.Pointer[parent] {
		ctx := &parent{t.Context()}
		e, err := g.server.BeginPick(ctx, "POST", "/v1/completions", proxied{}, AnswerEdited)
		if err != nil {
			t.Fatal(err)
		}
		e.End()
		return weak.Make(ctx)
	}
	kept := begin()
	for range 3 {
		runtime.GC()
	}
	if kept.Value() != nil {
		t.Error("it is kept")
	}
}

// While an answer passes by, nothing keeps the text of its request: a long prompt is not held for as long as
// its answer takes.
func TestPickExchange_TextIsNotKeptWhileItsAnswerPasses(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	send := func() (*PickExchange, weak.Pointer[byte]) { // in a frame of its own, which keeps nothing
		e := g.choose(askStream, AnswerEdited)
		text := weak.Make(&e.body.data[0])
		e.MarkSent()
		return e, text
	}
	e, text := send()
	for range 3 {
		runtime.GC()
	}
	if text.Value() != nil {
		t.Error("it is kept")
	}
	if got := reportAnswer(e, http.StatusOK, "text/event-stream", streamed, 7); got != strings.Replace(streamed, usageEvent, "", 1) {
		t.Errorf("the client gets %q", got)
	}
}
