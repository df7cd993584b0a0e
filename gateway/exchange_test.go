package gateway

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tandem-gateway/tandem/gateway/access"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pd/scalefromzero"
	"github.com/tandem-gateway/tandem/pools"
)

// The client's id is kept where it can stand in a header and a log line; else there is a new
// one.
func TestRequestID(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for id, kept := range map[string]bool{
		"azAZ09-_.:": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "": false,
		"a@b": false, "a[b": false, "a`b": false, "a{b": false, "a/b": false, "a;b": false, "a b": false, "ä": false, `a"b`: false, "a,b": false,
	} {
		got := g.ask("GET", "/nothing", "", "X-Request-Id", id).header.Get("X-Request-Id")
		if kept && got != id || !kept && (got == id || !strings.HasPrefix(got, "req-") || len(got) != len("req-")+36) {
			t.Errorf("%q became %q", id, got)
		}
	}
}

// The id goes to the client, in the header that the API's SDKs read, and to no engine.
func TestRequestID_IsForClientsOnly(t *testing.T) {
	e := &engines{answer: response(200, "application/json", `{"type":"message","content":[{"type":"text","text":"a"}],"usage":{"input_tokens":1,"output_tokens":1}}`)}
	g := run(t, usual(t), e.roundTrip, alone(t))
	got := g.ask("POST", "/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}`, "X-Request-Id", "mine")
	if got.status != 200 || got.header.Get("X-Request-Id") != "mine" || got.header.Get("Request-Id") != "mine" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
	for _, leg := range e.take() {
		if leg.header.Get("X-Request-Id") == "mine" {
			t.Errorf("an engine got %v", leg.header)
		}
	}
}

// A request belongs to the client's trace, if the client names one that can be read; its span
// says how it ended.
func TestExchange_Span(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	of := usual(t)
	of.tracer = provider.Tracer("")
	g := run(t, of, complete().roundTrip, alone(t))
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	request := func(body, parent string) (found tracetest.SpanStub) {
		t.Helper()
		spans.Reset()
		g.post(body, "Traceparent", parent)
		eventually(t, "the span has ended", func() bool {
			for _, span := range spans.GetSpans() {
				if span.Name == "request" {
					found = span
				}
			}
			return found.Name != ""
		})
		return found
	}
	good := request(`{"model":"m","prompt":"hi"}`, "00-"+trace+"-00f067aa0ba902b7-01")
	if good.SpanContext.TraceID().String() != trace || good.Status.Code != codes.Unset {
		t.Errorf("%v in trace %v", good.Status, good.SpanContext.TraceID())
	}
	values := make(map[string]string)
	for _, a := range good.Attributes {
		values[string(a.Key)] = a.Value.String()
	}
	if values["tandem.model"] != "m" || values["tandem.outcome"] != "ok" || values["http.response.status_code"] != "200" || values["tandem.api"] != "completions" || values["tandem.path"] != "http" {
		t.Errorf("%v", values)
	}
	for _, parent := range []string{"", "00-" + trace + "-00f067aa0ba902b7-01-" + strings.Repeat("x", 100)} {
		if other := request(`{"model":"m","prompt":"hi"}`, parent); other.SpanContext.TraceID().String() == trace {
			t.Errorf("%q: in the client's trace", parent)
		}
	}
	if refused := request(`{`, ""); refused.Status.Code != codes.Error || refused.Status.Description != "bad_request" {
		t.Errorf("a refused one: %v", refused.Status)
	}
	var admit tracetest.SpanStub
	for _, span := range spans.GetSpans() {
		if span.Name == "admit" {
			admit = span
		}
	}
	if admit.Status.Code != codes.Error || len(admit.Attributes) != 1 || admit.Attributes[0].Value.AsInt64() != 400 {
		t.Errorf("what refused it: %v %v", admit.Status, admit.Attributes)
	}
}

// handOff is a prefill server's answer.
const handOff = `{"choices":[{"text":"a"}],"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[[1,2]],"remote_host":"127.0.0.1","remote_port":1},` +
	`"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`

// Which servers answered is shown to those clients that may know.
func TestExchange_NamesThePairWhereConfigured(t *testing.T) {
	of := usual(t)
	of.cost.PairsFirst = true
	prefill, decode := healthy(t), healthy(t)
	specs := []pools.Spec{{URL: prefill, Role: pools.Prefill, Connector: "nixl"}, {URL: decode, Role: pools.Decode, Connector: "nixl"}}
	for _, told := range []bool{true, false} {
		of.config = func(c *Config) { c.ExposePair = told }
		g := run(t, of, func(r *http.Request) (*http.Response, error) {
			if "http://"+r.URL.Host == prefill {
				return response(200, "application/json", handOff)(), nil
			}
			return response(200, "application/json", completion)(), nil
		}, specs...)
		got := g.post(`{"model":"m","prompt":"` + strings.Repeat("river ", 40) + `"}`) // of several blocks
		want := [2]string{}
		if told {
			want = [2]string{strings.TrimPrefix(prefill, "http://"), strings.TrimPrefix(decode, "http://")}
		}
		if is := [2]string{got.header.Get("X-Tandem-Prefill"), got.header.Get("X-Tandem-Decode")}; got.status != 200 || is != want {
			t.Errorf("told %v: %d by %q, want %q", told, got.status, is, want)
		}
	}
	of.config = func(c *Config) { c.ExposePair = true }
	g := run(t, of, complete().roundTrip, alone(t))
	got := g.post(`{"model":"m","prompt":"hi"}`)
	if _, pair := got.header["X-Tandem-Prefill"]; pair || got.header.Get("X-Tandem-Decode") == "" {
		t.Errorf("one server answered alone: %v", got.header)
	}
	if got := g.post(`{`); got.header.Get("X-Tandem-Decode") != "" {
		t.Errorf("no server answered: %v", got.header)
	}
}

// An engine's 401 is for the client where the client's own key went to the engine; where
// there are keys here it is a failure of the engine.
func TestExchange_AnEnginesKey(t *testing.T) {
	for _, x := range []struct {
		keys   []string
		status int // of the engine
		want   int
	}{
		{nil, 401, 401}, {[]string{"ada"}, 401, 502}, {[]string{"ada"}, 422, 422}, {nil, 422, 422},
	} {
		e := &engines{answer: response(x.status, "application/json", `{"error":{"message":"no"}}`)}
		g := run(t, usual(t, x.keys...), e.roundTrip, alone(t))
		if got := g.post(`{"model":"m","prompt":"hi"}`, as("ada")...); got.status != x.want {
			t.Errorf("keys %v: the engine's %d became %d %s", x.keys, x.status, got.status, got.body)
		}
		forwarded := e.take()[0].header.Get("Authorization") != ""
		if forwarded != (x.keys == nil) {
			t.Errorf("keys %v: the engine got the client's key: %v", x.keys, forwarded)
		}
	}
}

// What is shed at capacity leaves no line in the log: under overload there would be one for each request.
func TestExchange_WhatIsShedIsNotLogged(t *testing.T) {
	var log testlog.Buffer
	of := usual(t)
	of.log = slog.NewTextHandler(&log, nil)
	g := run(t, of, (&engines{answer: response(503, "text/plain", "busy")}).roundTrip, alone(t))
	if got := g.post(`{"model":"m","prompt":"hi"}`); got.status != 503 || strings.Contains(log.String(), `msg="request failed"`) {
		t.Errorf("%d, and in the log: %s", got.status, &log)
	}
}

// Each request is counted once: by API, model and outcome, and its tenant's by class.
func TestExchange_IsCounted(t *testing.T) {
	var log testlog.Buffer
	of := usual(t, "ada class=batch")
	of.log = slog.NewTextHandler(&log, nil)
	e := complete()
	g := run(t, of, e.roundTrip, alone(t))
	g.post(`{"model":"m","prompt":"hi"}`, as("ada")...)
	g.post(`{"model":"other","prompt":"hi"}`, as("ada")...)
	g.post(`{"model":"m","prompt":"hi"}`)
	if strings.Contains(log.String(), `msg="request failed"`) {
		t.Errorf("what clients did wrong is in the log: %s", &log)
	}
	e.answer = response(500, "text/plain", "no")
	g.post(`{"model":"m","prompt":"hi"}`, append(as("ada"), "X-Request-Id", "broken")...)
	if n := strings.Count(log.String(), `msg="request failed"`); n != 1 || !strings.Contains(log.String(), "request_id=broken model=m status=502") {
		t.Errorf("%d failures in the log: %s", n, &log)
	}
	m := g.server.metrics
	for _, x := range []struct {
		model, outcome string
		want           float64
	}{{"m", "ok", 1}, {"unknown", "bad_request", 1}, {"unknown", "unauthorized", 1}, {"m", "error", 1}} {
		if n := testutil.ToFloat64(m.requests.WithLabelValues("completions", x.model, x.outcome, "http")); n != x.want {
			t.Errorf("%s %s: %v requests, want %v", x.model, x.outcome, n, x.want)
		}
	}
	if n := testutil.CollectAndCount(m.duration); n != 4 {
		t.Errorf("%d durations, want 4", n)
	}
	for _, outcome := range []string{"ok", "bad_request", "error"} {
		if n := testutil.ToFloat64(m.tenantRequests.WithLabelValues("ada", "batch", outcome)) + testutil.ToFloat64(m.tenantRequests.WithLabelValues("ada", "standard", outcome)); n != 1 {
			t.Errorf("%s: %v of ada's, want 1", outcome, n)
		}
	}
	for kind, want := range map[string]float64{"prompt": 2, "output": 3} {
		if n := testutil.ToFloat64(m.tenantTokens.WithLabelValues("ada", kind)); n != want {
			t.Errorf("%v %s tokens of ada, want %v", n, kind, want)
		}
	}
	second := time.Now().Add(time.Second) // the present one is not over
	if report := g.server.LoadReport(second); report.GetRpsFractional() != 0.4 || report.GetEps() != 0.1 {
		t.Errorf("of four requests in ten seconds one failed: %v and %v a second", report.GetRpsFractional(), report.GetEps())
	}
}

// A request of a tenant is counted in the class of its key however early it is refused, and in the one that it asks
// for once that is known.
func TestExchange_ARefusedRequestIsCountedInTheClassOfItsKey(t *testing.T) {
	g := run(t, usual(t, "ada class=batch max-output-tokens=8", "bob max-output-tokens=8"), complete().roundTrip, alone(t))
	for i, x := range []struct {
		key, class, body string
		headers          []string
	}{
		{"ada", "batch", `{"model":"m",`, nil},
		{"bob", "standard", `{"model":"m",`, nil},
		{"ada", "batch", `{"model":"m","prompt":"hi"}`, []string{access.DeadlineHeader, "soon"}},
		{"ada", "batch", `{"model":"m","prompt":"hi","max_tokens":9}`, nil},
		{"bob", "batch", `{"model":"m","prompt":"hi","max_tokens":9}`, []string{access.PriorityHeader, "batch"}},
	} {
		counted := g.server.metrics.tenantRequests.WithLabelValues(x.key, x.class, "bad_request")
		before := testutil.ToFloat64(counted)
		if got := g.post(x.body, append(as(x.key), x.headers...)...); got.status != 400 {
			t.Errorf("%d: %d %s", i, got.status, got.body)
		}
		if n := testutil.ToFloat64(counted) - before; n != 1 {
			t.Errorf("%d: %v of %s in %s, want 1", i, n, x.key, x.class)
		}
	}
}

// A request that panics is one that failed: it is answered by its id, counted and in the log,
// and its key has its slot again.
func TestExchange_APanicIsAFailure(t *testing.T) {
	var log testlog.Buffer
	of := usual(t, "ada concurrent-requests=1")
	of.log = slog.NewTextHandler(&log, nil)
	g := run(t, of, func(*http.Request) (*http.Response, error) { panic("in a leg") }, alone(t))
	for i := range 2 {
		got := g.post(`{"model":"m","prompt":"hi"}`, append(as("ada"), "X-Request-Id", "mine")...)
		if got.status != 500 || got.header.Get("X-Request-Id") != "mine" || gjson.Get(got.body, "error.type").String() != "api_error" {
			t.Errorf("%d: %d %s %v", i, got.status, got.body, got.header)
		}
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "error", "http")); n != 2 {
		t.Errorf("%v are counted, want 2", n)
	}
	if n := strings.Count(log.String(), `msg="panic in a request" request_id=mine panic="in a leg"`); n != 2 {
		t.Errorf("%d in the log: %s", n, &log)
	}
}

// Where there are no keys there are no tenants.
func TestExchange_NoTenantIsNotCounted(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	g.post(`{"model":"m","prompt":"hi"}`)
	if n := testutil.CollectAndCount(g.server.metrics.tenantRequests) + testutil.CollectAndCount(g.server.metrics.tenantTokens); n != 0 {
		t.Errorf("%d series of tenants", n)
	}
}

// A client that leaves ends its request, which is no server's failure.
func TestExchange_AClientThatLeaves(t *testing.T) {
	begun := make(chan struct{})
	g := run(t, usual(t), func(r *http.Request) (*http.Response, error) {
		close(begun)
		<-r.Context().Done()
		return nil, r.Context().Err()
	}, alone(t))
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-begun
		leave()
	}()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.base+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"hi"}`))
	if resp, err := client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		t.Error("it got an answer")
	}
	eventually(t, "it is counted", func() bool {
		return testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "client_gone", "http")) == 1
	})
	nothingHeld(t, g.queue, g.fleet.Servers()[0])
	if eps := g.server.LoadReport(time.Now().Add(time.Second)).GetEps(); eps != 0 {
		t.Errorf("%v errors a second", eps)
	}
}

// A client may ask with its whole request sent at once and wait for two answers of one
// connection: watching it takes nothing of what it sends.
func TestExchange_PipelinedRequests(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	const one = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 27\r\n\r\n" + `{"model":"m","prompt":"hi"}`
	got := g.say(one + one + "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 27\r\n\r\n" + `{"model":"m","prompt":"hi"}`)
	if n := strings.Count(got, "HTTP/1.1 200 OK"); n != 3 || strings.Count(got, `"text":"Hello"`) != 3 {
		t.Errorf("%d answers of 3: %s", n, got)
	}
}

// What is asked for must be served: by a server, or by one that is started for it.
func TestKnownModel(t *testing.T) {
	spec := alone(t)
	spec.URL = listing(t, `{"data":[{"id":"m","max_model_len":100},{"id":"lora","parent":"m"},{"id":"endless"}]}`)
	of := usual(t, "ada models=[m,lora,endless,later,chat]", "eve models=[chat]")
	of.config = func(c *Config) {
		c.Aliases = []Alias{{Name: "chat", Targets: []Target{{"m", 1}}}, {Name: "void", Targets: []Target{{"nobody", 1}}}}
	}
	g := run(t, of, complete().roundTrip, spec)
	for _, x := range []struct {
		key, fields string
		status      int
		code, param string
	}{
		{"ada", `"model":"m"`, 200, "", ""},
		{"ada", `"model":"m","max_tokens":100`, 200, "", ""}, // as much as there is room for
		{"ada", `"model":"m","max_tokens":101`, 400, "", "max_tokens"},
		{"ada", `"model":"lora","max_tokens":101`, 400, "", "max_tokens"},
		{"ada", `"model":"endless","max_tokens":100`, 200, "", ""},
		{"ada", `"model":"nobody"`, 404, "model_not_found", "model"},
		{"ada", `"model":"chat"`, 200, "", ""},
		{"ada", `"model":"void"`, 404, "model_not_found", "model"},
		{"eve", `"model":"m"`, 404, "model_not_found", "model"},
		{"eve", `"model":"chat"`, 200, "", ""}, // whatever is behind it
	} {
		got := g.post(`{"prompt":"hi",`+x.fields+`}`, as(x.key)...)
		if got.status != x.status || gjson.Get(got.body, "error.code").String() != x.code || gjson.Get(got.body, "error.param").String() != x.param {
			t.Errorf("%s asks {%s}: %d %s, want %d %s", x.key, x.fields, got.status, got.body, x.status, x.code)
		}
	}
}

// As long as no server has told its models a model is not unknown.
func TestKnownModel_BeforeAnythingIsKnown(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip)
	if got := g.post(`{"model":"m","prompt":"hi"}`); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// A model at zero is asked for like others, and its requests wait for a server.
func TestKnownModel_ThatComes(t *testing.T) {
	begun := make(chan struct{}, 1)
	of := usual(t)
	of.from0 = &scalefromzero.Activator{
		Config: scalefromzero.Config{MaxWait: time.Minute, MaxWaiting: 10},
		Base:   func(model string) (string, bool) { return "m", model == "m" || model == "m-lora" },
		Models: func() []string { return []string{"m", "m-lora"} },
		Begin:  func() { begun <- struct{}{} },
	}
	g := run(t, of, complete().roundTrip)
	if got := g.post(`{"model":"other","prompt":"hi"}`); got.status != 404 {
		t.Errorf("no server will serve it: %d %s", got.status, got.body)
	}
	answer := make(chan reply)
	go func() { answer <- g.post(`{"model":"m","prompt":"hi"}`) }()
	<-begun
	if err := g.fleet.Apply([]pools.Spec{alone(t)}); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "m", "ok", "http")); n != 1 {
		t.Errorf("%v counted as the model's", n)
	}
}
