package loadtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestAsk_MeasuresAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := memoryClient(testConfig(), streamTokens(5, 200*time.Millisecond, 30*time.Millisecond))
		defer stop()
		o := c.ask(t.Context(), []byte("{}"))
		if o.kind != OK {
			t.Fatalf("%s: %s", o.kind, o.detail)
		}
		gap := 30 * time.Millisecond
		if o.ttft != 200*time.Millisecond || !slices.Equal(o.gaps, []time.Duration{gap, gap, gap, gap}) || o.e2e != 320*time.Millisecond {
			t.Errorf("TTFT %v, ITL %v, E2E %v", o.ttft, o.gaps, o.e2e)
		}
		if tpot, ok := o.tpot(); tpot != gap || !ok {
			t.Errorf("TPOT %v", tpot)
		}
		if o.promptTokens != 100 || o.cachedTokens != 64 || o.outputTokens != 5 || !o.counted {
			t.Errorf("tokens %d, %d, %d", o.promptTokens, o.cachedTokens, o.outputTokens)
		}
	})
}

func TestAsk_WithoutUsageCountsContentEvents(t *testing.T) {
	o := askOnce(t, testConfig(), func(w http.ResponseWriter, _ *http.Request) {
		say(w, roleChunk, chatChunk("a"), ": ping\n\n", chatChunk("b"), chatChunk(""), finishChunk, doneEvent)
	})
	if o.kind != OK || o.outputTokens != 2 || o.counted || len(o.gaps) != 1 {
		t.Errorf("%q %s: %d tokens, %d gaps", o.kind, o.detail, o.outputTokens, len(o.gaps))
	}
}

func TestAsk_NotStreamedHasOnlyE2E(t *testing.T) {
	cfg := testConfig()
	cfg.Stream = false
	o := askOnce(t, cfg, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`)
	})
	if _, ok := o.tpot(); o.kind != OK || o.ttft != 0 || o.e2e == 0 || ok || o.outputTokens != 3 {
		t.Errorf("%q %s: TTFT %v, E2E %v, %d tokens", o.kind, o.detail, o.ttft, o.e2e, o.outputTokens)
	}
}

func TestAsk_AModelMayEndAtOnce(t *testing.T) {
	for _, tokens := range []int{0, 1} {
		o := askOnce(t, testConfig(), func(w http.ResponseWriter, _ *http.Request) {
			say(w, roleChunk, stopChunk, usageChunk(9, 0, tokens), doneEvent)
		})
		if o.kind != OK || o.ttft != 0 || o.e2e == 0 {
			t.Errorf("%d tokens: %q %s", tokens, o.kind, o.detail)
		}
	}
}

func TestAsk_OtherFormsOfContent(t *testing.T) {
	for name, delta := range map[string]string{
		"completions":       `"text":"a"`,
		"reasoning":         `"delta":{"reasoning":"a"}`,
		"reasoning_content": `"delta":{"content":null,"reasoning_content":"a"}`,
		"tool calls":        `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}`,
	} {
		o := askOnce(t, testConfig(), func(w http.ResponseWriter, _ *http.Request) {
			chunk := `data: {"choices":[{"index":0,` + delta + `,"finish_reason":null}]}` + "\n\n"
			say(w, chunk, chunk, finishChunk, doneEvent)
		})
		if o.kind != OK || o.events != 2 {
			t.Errorf("%s: %q %s, %d content events", name, o.kind, o.detail, o.events)
		}
	}
}

// testServer serves handler on a real socket until the test ends.
func testServer(t *testing.T, handler http.HandlerFunc) (url string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// askOnce sends one request to handler over a real socket.
func askOnce(t *testing.T, cfg Config, handler http.HandlerFunc) *outcome {
	t.Helper()
	cfg.URL = testServer(t, handler)
	c := newClient(cfg)
	defer c.close()
	return c.ask(t.Context(), []byte("{}"))
}

// hang waits until the client has gone. The server sees that only once the body
// is read.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// cut ends the connection: at once with a reset, or with an orderly close.
func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	if reset {
		_ = conn.(*net.TCPConn).SetLinger(0)
	}
	conn.Close()
}

func TestAsk_FailuresByKind(t *testing.T) {
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); fmt.Fprint(w, body) }
	}
	stream := func(parts ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { say(w, parts...) }
	}
	one := chatChunk("a")
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		kind    Kind
		detail  string // part of it
	}{
		"429":      {status(429, `{"error":{"message":"slow down"}}`), "http_429", "slow down"},
		"503":      {status(503, "no server"), "http_503", "no server"},
		"404":      {status(404, ""), "http_404", ""},
		"redirect": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", 307) }, "http_307", ""},
		"204":      {status(204, ""), "http_204", ""},

		"closed before an answer": {func(w http.ResponseWriter, _ *http.Request) { cut(w, false) }, Reset, ""},
		"reset before an answer":  {func(w http.ResponseWriter, _ *http.Request) { cut(w, true) }, Reset, ""},
		"cut in the stream": {func(w http.ResponseWriter, _ *http.Request) {
			say(w, roleChunk, one)
			panic(http.ErrAbortHandler)
		}, Reset, ""},
		"hangs before headers": {func(_ http.ResponseWriter, r *http.Request) { hang(r) }, Timeout, ""},
		"hangs in the stream":  {func(w http.ResponseWriter, r *http.Request) { say(w, one); hang(r) }, Timeout, ""},
		"hangs after [DONE]":   {func(w http.ResponseWriter, r *http.Request) { say(w, one, finishChunk, doneEvent); hang(r) }, Timeout, ""},

		"error event":          {stream(one, `data: {"error":{"message":"decode failed"}}`+"\n\n", doneEvent), ErrorEvent, "decode failed"},
		"named error event":    {stream(one, "event: error\ndata: {\"oops\":1}\n\n"), ErrorEvent, "oops"},
		"error without a text": {stream(`data: {"error":"bad"}` + "\n\n"), ErrorEvent, "bad"},
		"older vLLM error":     {stream(`data: {"object":"error","message":"old"}` + "\n\n"), ErrorEvent, "old"},

		"nothing at all":         {stream(""), Truncated, "without a finish_reason"},
		"only [DONE]":            {stream(doneEvent), Truncated, "without a finish_reason"},
		"no finish_reason":       {stream(one, doneEvent), Truncated, "after 1 content events"},
		"no [DONE]":              {stream(one, finishChunk), Truncated, "without [DONE]"},
		"neither":                {stream(one), Truncated, "without a finish_reason"},
		"ends within an event":   {stream(one, `data: {"choices":[{"del`), Truncated, "within an event"},
		"finish_reason error":    {stream(one, strings.Replace(finishChunk, "length", "error", 1), doneEvent), BadFinish, "error"},
		"finish_reason abort":    {stream(one, strings.Replace(finishChunk, "length", "abort", 1), doneEvent), BadFinish, "abort"},
		"no content":             {stream(roleChunk, finishChunk, usageChunk(9, 0, 1), doneEvent), Empty, ""},
		"content lost":           {stream(roleChunk, stopChunk, usageChunk(9, 0, 2), doneEvent), Empty, ""},
		"content lost, no usage": {stream(roleChunk, stopChunk, doneEvent), Empty, ""},
		"no stream":              {status(200, `{"choices":[]}`), Malformed, "content type"},
		"garbage":                {stream(one, "\x07garbage\n\n"), Malformed, "no field"},
		"broken JSON":            {stream(`data: {"choices":[}` + "\n\n"), Malformed, "not JSON"},
		"no choices":             {stream(`data: {"hello":1}` + "\n\n"), Malformed, "no choices"},
		"content after the end":  {stream(one, finishChunk, one, doneEvent), Malformed, "content after"},
		"event after [DONE]":     {stream(one, finishChunk, doneEvent, one), Malformed, "after [DONE]"},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			fmt.Fprint(conn, "NONSENSE\r\n\r\n")
			conn.Close()
		}, Transport, "malformed HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig()
			cfg.Timeout = time.Minute
			if c.kind == Timeout {
				cfg.Timeout = 100 * time.Millisecond
			}
			o := askOnce(t, cfg, c.handler)
			if o.kind != c.kind || !strings.Contains(o.detail, c.detail) {
				t.Errorf("got %q (%s), want %q (%s)", o.kind, o.detail, c.kind, c.detail)
			}
		})
	}
}

func TestAsk_NotStreamedFailures(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		kind Kind
	}{
		"error in a 200":   {`{"error":{"message":"no"}}`, ErrorEvent},
		"no finish_reason": {`{"choices":[{"message":{"content":"a"},"finish_reason":null}]}`, Truncated},
		"no choices":       {`{"choices":[]}`, Truncated},
		"broken JSON":      {`{"choices":[`, Malformed},
		"no content":       {`{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}`, Empty},
		"empty":            {``, Malformed},
	} {
		cfg := testConfig()
		cfg.Stream = false
		o := askOnce(t, cfg, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.body) })
		if o.kind != c.kind {
			t.Errorf("%s: got %q (%s), want %q", name, o.kind, o.detail, c.kind)
		}
	}
}

func TestAsk_Refused(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	cfg := testConfig()
	cfg.URL = server.URL
	server.Close()
	c := newClient(cfg)
	defer c.close()
	if o := c.ask(t.Context(), []byte("{}")); o.kind != Refused {
		t.Errorf("got %q (%s)", o.kind, o.detail)
	}
}

func TestAsk_InterruptedIsNoFailureOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, stop := memoryClient(testConfig(), func(w http.ResponseWriter, r *http.Request) {
			say(w, chatChunk("a"))
			cancel()
			hang(r)
		})
		defer stop()
		if o := c.ask(ctx, []byte("{}")); o.kind != Interrupted {
			t.Errorf("got %q (%s)", o.kind, o.detail)
		}
	})
}

func TestAsk_ReusesConnections(t *testing.T) {
	var opened int
	server := httptest.NewUnstartedServer(streamTokens(2, 0, 0))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened++
		}
	}
	server.Start()
	cfg := testConfig()
	cfg.URL = server.URL
	c := newClient(cfg)
	for range 20 {
		if o := c.ask(t.Context(), []byte("{}")); o.kind != OK {
			t.Fatalf("%s: %s", o.kind, o.detail)
		}
	}
	c.close()
	server.Close()
	if opened > 3 { // one may be given up for a pause of 50 ms
		t.Errorf("20 requests one after the other opened %d connections", opened)
	}
}

func TestAsk_SendsTheHeadersAndReportsTheRequestID(t *testing.T) {
	cfg := testConfig()
	cfg.Header = http.Header{"Authorization": {"Bearer k"}}
	o := askOnce(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("Authorization")+" "+r.Header.Get("Content-Type"))
		w.WriteHeader(500)
	})
	if o.requestID != "Bearer k application/json" {
		t.Errorf("got %q", o.requestID)
	}
}

func TestClient_DialsOnlyThisMachine(t *testing.T) {
	// A reserved address (RFC 5737): nothing is sent, the dialer refuses first.
	cfg := testConfig()
	cfg.URL = "http://192.0.2.1:80"
	c := newClient(cfg)
	defer c.close()
	if o := c.ask(t.Context(), []byte("{}")); o.kind != Transport || !strings.Contains(o.detail, "--allow-remote") {
		t.Errorf("got %q (%s)", o.kind, o.detail)
	}
}

// A server that wants a key is no server without models: the error names the flag that gives one.
func TestFirstModel_OfAServerThatWantsAKey(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer sk-ada" {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	}))
	defer server.Close()
	cfg := testConfig()
	cfg.URL = server.URL
	for key, want := range map[string]string{"": "--header 'Authorization: Bearer KEY'", "Bearer sk-ada": ""} {
		cfg.Header = http.Header{"Authorization": {key}}
		c := newClient(cfg)
		if _, err := c.firstModel(t.Context()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: %v", key, err)
		}
		c.close()
	}
}

func TestFirstModelAndWordRate(t *testing.T) {
	var sample string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"first"},{"id":"second"}]}`)
		case "/tokenize":
			sample = r.Header.Get("Content-Type")
			fmt.Fprintf(w, `{"count":%d}`, 2*sampleTokens)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	cfg := testConfig()
	cfg.URL = server.URL + "/"
	c := newClient(cfg)
	defer c.close()
	if model, err := c.firstModel(t.Context()); model != "first" || err != nil {
		t.Errorf("model %q, %v", model, err)
	}
	if got := c.wordRate(t.Context(), "first", 0); got != (WordRate{PerToken: 0.5, Source: "measured"}) || sample == "" {
		t.Errorf("word rate %+v", got)
	}
	if got := c.wordRate(t.Context(), "first", 0.8); got != (WordRate{PerToken: 0.8, Source: "given"}) {
		t.Errorf("word rate %+v", got)
	}
	c.base += "/nowhere"
	if got := c.wordRate(t.Context(), "first", 0); got != (WordRate{PerToken: 1, Source: "assumed"}) {
		t.Errorf("word rate %+v", got)
	}
	if _, err := c.firstModel(t.Context()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("got %v", err)
	}
}
