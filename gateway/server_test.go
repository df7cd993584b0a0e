package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/tidwall/gjson"
)

func TestConfig_Validate(t *testing.T) {
	for _, x := range []struct {
		name   string
		change func(*Config)
		valid  bool
	}{
		{"as it comes", func(*Config) {}, true},
		{"the smallest bodies", func(c *Config) { c.MaxBody = 1024 }, true},
		{"smaller bodies", func(c *Config) { c.MaxBody = 1023 }, false},
		{"the smallest headers", func(c *Config) { c.MaxHeader = 1024 }, true},
		{"smaller headers", func(c *Config) { c.MaxHeader = 1023 }, false},
		{"no time to read", func(c *Config) { c.ReadTimeout = 0 }, false},
		{"no time between requests", func(c *Config) { c.ConnIdle = 0 }, false},
		{"no time to write", func(c *Config) { c.WriteTimeout = 0 }, false},
		{"a nanosecond of each", func(c *Config) { c.ReadTimeout, c.ConnIdle, c.WriteTimeout = 1, 1, 1 }, true},
		{"no tenant in metrics", func(c *Config) { c.TenantLabels = 0 }, true},
		{"fewer than none", func(c *Config) { c.TenantLabels = -1 }, false},
	} {
		c := DefaultConfig()
		x.change(&c)
		if err := c.Validate(); (err == nil) != x.valid {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

// What no handler takes is refused in the shape of the API that was meant, and counted.
func TestServer_RefusesWhatIsNotThere(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for _, x := range []struct {
		method, path string
		status       int
		code, allow  string
	}{
		{"GET", "/nothing", 404, "not_found", ""},
		{"GET", "/v1/completions", 405, "method_not_allowed", "POST"},
		{"POST", "/v1/completions/", 404, "not_found", ""}, // strict
		{"POST", "/V1/completions", 404, "not_found", ""},
		{"GET", "/generate", 404, "not_found", ""}, // no server speaks it
		{"POST", "/generate", 404, "not_found", ""},
		{"POST", "/v1/responses/input_tokens", 404, "not_found", ""}, // of OpenAI's, and not here
		{"POST", "/v1/responses/compact", 404, "not_found", ""},
		{"PUT", "/v1/responses/resp_1", 405, "method_not_allowed", "GET, HEAD, DELETE"},
	} {
		got := g.ask(x.method, x.path, "")
		if got.status != x.status || gjson.Get(got.body, "error.code").String() != x.code || got.header.Get("Allow") != x.allow || got.header.Get("X-Request-Id") == "" {
			t.Errorf("%s %s: %d %s, allow %q", x.method, x.path, got.status, got.body, got.header.Get("Allow"))
		}
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("none", "none", "bad_request", "http")); n != 9 {
		t.Errorf("%v are counted, want 9", n)
	}
	for _, path := range []string{"/v1/messages", "/v1/messages/batches"} {
		got := g.ask("GET", path, "", "X-Request-Id", "mine")
		if gjson.Get(got.body, "type").String() != "error" || gjson.Get(got.body, "request_id").String() != "mine" || got.header.Get("Request-Id") != "mine" {
			t.Errorf("%s: %s by %v, want Anthropic's shape", path, got.body, got.header)
		}
	}
	if got := g.ask("GET", "/v1/messagesx", ""); gjson.Get(got.body, "type").Exists() || got.header.Get("Request-Id") != "" {
		t.Errorf("no path of Anthropic's: %s", got.body)
	}
}

// A path that some server speaks is there: only the method is wrong.
func TestServer_TheNativePathIsThereWhereAServerSpeaksIt(t *testing.T) {
	native := alone(t)
	native.Native = true
	g := run(t, usual(t), complete().roundTrip, native)
	if got := g.ask("GET", "/generate", ""); got.status != 405 || got.header.Get("Allow") != "POST" {
		t.Errorf("%d %s, allow %q", got.status, got.body, got.header.Get("Allow"))
	}
}

// A base URL without /v1, or with it twice, is the usual mistake with an SDK: the 404 names the path. It repeats
// nothing of the client's.
func TestServer_NamesThePathThatWasMeant(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for path, meant := range map[string]string{
		"/chat/completions": "/v1/chat/completions", "/v1/v1/messages": "/v1/messages", "/v1/completions/": "/v1/completions", "/models": "/v1/models",
		"/v1//messages": "/v1/messages", "/v1///models//": "/v1/models",
		"/v1/nothing": "", "/nothing/": "", "/generate/": "",
	} {
		want := "There is nothing at this path."
		if meant != "" {
			want += " Did you mean " + meant + "?"
		}
		got := g.ask("POST", path, "{}")
		if message := gjson.Get(got.body, "error.message").String(); got.status != 404 || message != want {
			t.Errorf("%s: %d %q, want %q", path, got.status, message, want)
		}
	}
}

// A client of an API that is not served learns what it may use instead, and no other path passes for one.
func TestServer_SaysWhatIsServedInstead(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	for path, want := range map[string]string{
		"/v1/files": "Files are not kept", "/v1/files/file-1/content": "Files are not kept", "/files": "Files are not kept", "/v1/uploads": "Files are not kept",
		"/v1/batches": "send each request by itself", "/v1/messages/batches": "send each request by itself",
		"/v1/assistants": "POST /v1/responses", "/v1/threads/t/runs": "POST /v1/responses", "/v1/conversations": "POST /v1/responses",
		"/v1/chat/completions/c-1": "not kept", "/v1/vector_stores": "/v1/embeddings", "/v1/images/generations": "Only text", "/v1/audio/speech": "Only text",
		"/v1/audio/transcriptions": "Only text", "/v1/videos": "Only text", "/v1/realtime": "stream", "/v1/moderations": "/v1/classify",
		"/v1/fine_tuning/jobs": "not trained", "/v1/fine-tunes": "not trained", "/v1/complete": "POST /v1/messages",
		"/openai/deployments/d/chat/completions": "base URL", "/api/chat": "Ollama", "/api/generate": "Ollama", "/api/tags": "Ollama",
		"/generate": "native: true", "/flush_cache": "each engine", "/reset_prefix_cache": "each engine", "/metrics": "admin port", "/tokenizer_info": "lm-evaluation-harness", "/v1beta/models/m:generateContent": "Gemini",
		"/": "/v1/chat/completions", "/v1/": "/v1/chat/completions", "/generate_stream": "POST /v1/completions", "/embed": "POST /v1/embeddings",
		"/v1/filesystem": "", "/v1/file": "", "/v1/images2": "", "/api/other": "",
	} {
		got := g.ask("POST", path, "{}")
		message, found := strings.CutPrefix(gjson.Get(got.body, "error.message").String(), "There is nothing at this path.")
		if got.status != 404 || !found || !strings.Contains(message, want) || want == "" && message != "" {
			t.Errorf("%s: %d %s, want %q", path, got.status, got.body, want)
		}
	}
}

// Bytes that are no HTTP get an answer that says why and repeats nothing of them.
func TestServer_RefusesMalformedHTTP(t *testing.T) {
	of := usual(t)
	of.config = func(c *Config) { c.MaxHeader = 2048 }
	g := run(t, of, complete().roundTrip, alone(t))
	for _, x := range []struct{ name, text, status, body string }{
		{"a control byte", "GET / HTTP/1.1\r\nHost: a\r\nX: sk-\x01\r\n\r\n", "400", "control character"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "400", "Host is missing"},
		{"large headers", "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 4096) + "\r\n\r\n", "431", "header block"},
		{"a target that fills the buffer", "GET /" + strings.Repeat("x", 9000) + " HTTP/1.1\r\nHost: a\r\n\r\n", "414", "target is longer"},
		{"another version", "GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505", "HTTP/1.1"},
		{"two slashes", "GET //x HTTP/1.1\r\nHost: a\r\n\r\n", "404", "There is nothing at a path that begins with two slashes"},
		{"a body beyond the limit", "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n", "413", "request_too_large"},
	} {
		got := g.say(x.text)
		if !strings.HasPrefix(got, "HTTP/1.1 "+x.status+" ") || !strings.Contains(got, x.body) || strings.Contains(got, "sk-") {
			t.Errorf("%s: %s", x.name, got)
		}
	}
	if got := g.say("POST /v1/messages HTTP/1.1\r\nHost: a\r\nX: \x01\r\n\r\n"); !strings.Contains(got, `"type":"error"`) || !strings.Contains(got, "Request-Id: req-") {
		t.Errorf("for Anthropic's API: %s", got)
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("none", "none", "bad_request", "http")); n != 8 {
		t.Errorf("%v are counted, want 8", n)
	}
}

// A second request that is malformed is refused like a first one, after the first's answer.
func TestServer_RefusesTheSecondRequestOfAConnection(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	got := g.say("GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\nHost a\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 200 ") || strings.Count(got, "HTTP/1.1 400 ") != 1 || !strings.Contains(got, "no valid name") {
		t.Errorf("%s", got)
	}
}

// Responses are not kept: a client that asks for an earlier one gets a 404 that says so, if its key
// is known.
func TestServer_KeepsNoResponses(t *testing.T) {
	g := run(t, usual(t, "ada"), complete().roundTrip, alone(t))
	for _, x := range []struct{ method, path string }{
		{"GET", "/v1/responses/resp_1"}, {"DELETE", "/v1/responses/resp_1"}, {"POST", "/v1/responses/resp_1/cancel"}, {"GET", "/v1/responses/resp_1/input_items"},
	} {
		if got := g.ask(x.method, x.path, "", as("ada")...); got.status != 404 || gjson.Get(got.body, "error.code").String() != "response_not_found" {
			t.Errorf("%s %s: %d %s", x.method, x.path, got.status, got.body)
		}
		if got := g.ask(x.method, x.path, ""); got.status != 401 {
			t.Errorf("%s %s without a key: %d", x.method, x.path, got.status)
		}
	}
	for outcome, want := range map[string]float64{"bad_request": 4, "unauthorized": 4} {
		if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("responses", "none", outcome, "http")); n != want {
			t.Errorf("%v %s are counted, want %v", n, outcome, want)
		}
	}
}

// Load balancers send requests as long as some server could serve them, until a drain.
func TestServer_Health(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	if got := g.ask("GET", "/health", ""); got.status != 200 {
		t.Errorf("%d with a server", got.status)
	}
	g.server.Drain()
	if got := g.ask("GET", "/health", ""); got.status != 503 {
		t.Errorf("%d while it drains", got.status)
	}
	none := run(t, usual(t), complete().roundTrip)
	if got := none.ask("GET", "/health", ""); got.status != 503 {
		t.Errorf("%d without a server", got.status)
	}
}

// never is a body of one event that does not end before its request.
type never struct {
	event io.Reader
	ended <-chan struct{}
}

func (n never) Read(p []byte) (int, error) {
	if k, err := n.event.Read(p); err == nil {
		return k, nil
	}
	<-n.ended
	return 0, context.Canceled
}

func (never) Close() error { return nil }

// endless is an engine whose streams begin and do not end.
func endless(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: never{strings.NewReader(`data: {"choices":[{"index":0,"text":"Hi","finish_reason":null}]}` + "\n\n"), r.Context().Done()},
	}, nil
}

// openStream begins a stream and returns the rest of it, once its first event has come.
func (g *running) openStream(headers ...string) (rest *bufio.Reader, hangUp func()) {
	g.t.Helper()
	ctx, cancel := context.WithCancel(g.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.base+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"hi","stream":true}`))
	if err != nil {
		g.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		cancel()
		_ = resp.Body.Close()
	})
	rest = bufio.NewReader(resp.Body)
	if line, err := rest.ReadString('\n'); err != nil || !strings.Contains(line, "Hi") {
		g.t.Fatalf("%d %s, %v", resp.StatusCode, line, err)
	}
	return rest, cancel
}

// A stream that has not ended shortly before the end of a shutdown is told so, and cut.
func TestShutdown_EndsStreamsThatItWillNotWaitForWithAnError(t *testing.T) {
	g := run(t, usual(t), endless, alone(t))
	rest, _ := g.openStream()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := g.stop(ctx); err != nil {
		t.Errorf("the stream had a quarter of the time to end, and %v", err)
	}
	text, err := io.ReadAll(rest)
	if err == nil || !strings.Contains(string(text), "shutting down") {
		t.Errorf("%q, %v: want an error event and a cut", text, err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("cut after %v of 2 s", took)
	}
}

// A client that connected and sent nothing does not delay a shutdown.
func TestShutdown_WaitsForNoSilentConnection(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	silent := g.dial() // accepted before the drain begins, or amid it; or never: the system resets it then
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	began := time.Now()
	if err := g.stop(ctx); err != nil || time.Since(began) > 15*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	if _, err := silent.Read(make([]byte, 1)); err != io.EOF && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want the connection closed", err)
	}
}

// begins opens a connection on which a client sends the beginning of a request, which the gateway has read when this
// returns.
func (g *running) begins(text string) net.Conn {
	g.t.Helper()
	conn := g.dial()
	if _, err := io.WriteString(conn, text); err != nil {
		g.t.Fatal(err)
	}
	from := conn.LocalAddr().String()
	eventually(g.t, "it was read", func() bool {
		l := g.server.clients.Load()
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.conns {
			if c.RemoteAddr().String() == from {
				return c.receivedAny.Load() && c.wait.Load() > 0
			}
		}
		return false
	})
	return conn
}

// A client that has sent a part of a request, and sends nothing more, has no answer to lose: a shutdown does not take
// all of its time for it, nor end with an error.
func TestShutdown_WaitsForNoRequestThatStopsComing(t *testing.T) {
	for name, begun := range map[string]string{
		"a part of the first line": "POST /v1/compl",
		"a part of the head":       "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConte",
		"no body":                  "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
		"a part of a long body":    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat(" ", 50_000),
		"a part of a chunk":        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := run(t, usual(t), complete().roundTrip, alone(t))
			conn := g.begins(begun)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			began := time.Now()
			if err := g.stop(ctx); err != nil || time.Since(began) > 25*time.Second {
				t.Errorf("stopped with %v after %v", err, time.Since(began))
			}
			if back, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(back), "HTTP/1.1 408 ") {
				t.Errorf("the client got %q, %v", back, err)
			}
		})
	}
}

// Where a shutdown has less time than that, such a client is given up before the time is over.
func TestShutdown_GivesUpRequestsThatStopComingBeforeItMustEnd(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	conn := g.begins("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := g.stop(ctx); err != nil {
		t.Error(err)
	}
	if back, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(back), "HTTP/1.1 408 ") {
		t.Errorf("the client got %q, %v", back, err)
	}
}

// A client whose request is on its way when a shutdown begins gets its answer.
func TestShutdown_AnswersRequestsThatGoOnComing(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip, alone(t))
	const body = `{"model":"m","prompt":"hi"}`
	head := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", len(body))
	inHead, inBody := g.begins(head[:30]), g.begins(head+body[:10])
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- g.stop(ctx) }()
	eventually(t, "it stops", func() bool { return g.server.clients.Load().closing.Load() })
	for rest, conn := range map[string]net.Conn{head[30:] + body: inHead, body[10:]: inBody} {
		if _, err := io.WriteString(conn, rest); err != nil {
			t.Error(err)
		}
		if back, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(back), "HTTP/1.1 200 ") {
			t.Errorf("after %q: %q, %v", rest, back, err)
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// brokenListener is one whose socket is gone.
type brokenListener struct{ err error }

func (l brokenListener) Accept() (net.Conn, error) { return nil, l.err }
func (l brokenListener) Close() error              { return l.err }
func (l brokenListener) Addr() net.Addr            { return &net.TCPAddr{} }

// What ends a listener or hinders a shutdown comes back as an error: the process must not pass for
// one that stopped in order.
func TestServer_ErrorsOfItsListener(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip)
	gone := errors.New("the socket is gone")
	s := New(DefaultConfig(), nil, g.pd, g.server.metrics)
	if err := s.Serve(brokenListener{gone}); !errors.Is(err, gone) || !strings.Contains(err.Error(), "serve clients") {
		t.Errorf("Serve: %v", err)
	}
	s = New(DefaultConfig(), nil, g.pd, g.server.metrics)
	s.clients.Store(newListener(brokenListener{gone}, s.cfg, s.log))
	if err := s.Shutdown(t.Context()); !errors.Is(err, gone) || !strings.Contains(err.Error(), "close the listener") {
		t.Errorf("Shutdown: %v", err)
	}
}

// A shutdown that may wait no longer says that requests are left.
func TestShutdown_SaysThatItDidNotEnd(t *testing.T) {
	release := make(chan struct{})
	g := run(t, usual(t), func(*http.Request) (*http.Response, error) {
		<-release
		return response(200, "application/json", completion)(), nil
	}, alone(t))
	answered := make(chan reply, 1)
	go func() { answered <- g.post(`{"model":"m","prompt":"hi"}`) }()
	eventually(t, "it is in flight", func() bool { _, n := g.queue.Len(); return n == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.server.Shutdown(ctx); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "drain") {
		t.Errorf("with a request in flight: %v", err)
	}
	close(release)
	if got := <-answered; got.status != 200 {
		t.Errorf("it was not told to end: %d %s", got.status, got.body)
	}
}

// A shutdown that has ended ends nothing later: requests that a picker still follows have its own
// time to end.
func TestShutdown_EndsNothingOnceItIsOver(t *testing.T) {
	g := run(t, usual(t), complete().roundTrip)
	synctest.Test(t, func(t *testing.T) {
		s := New(DefaultConfig(), nil, g.pd, g.server.metrics)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := context.Cause(&s.life); err != nil {
			t.Errorf("a minute later: %v", err)
		}
	})
}
