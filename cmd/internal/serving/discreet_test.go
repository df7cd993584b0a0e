package serving

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// What an engine answers that is no HTTP, and its 401, reach neither client, log nor trace:
// the address may be another service's by now, and a refusal may repeat the key.
func TestDiscreet_AnEnginesOddAnswersAreNotRepeated(t *testing.T) {
	const told = "s3cr3t-of-the-engine"
	e := startTestEngine(t, engine.RoleBoth, nil)
	to, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	var raw atomic.Pointer[string]
	through := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		odd := raw.Load()
		if odd == nil {
			through.ServeHTTP(w, r)
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(*odd))
		_ = conn.Close()
	}))
	t.Cleanup(front.Close)
	var log, traces testlog.Buffer
	cfg := testConfig()
	cfg.telemetry.otlp = newCollector(t, func(body []byte) { _, _ = traces.Write(body) })
	cfg.servers[2].add(serverEntry{URL: front.URL, Connector: "nixl"})
	c := &cluster{t: t, client: newTestClient(t)}
	c.run(cfg, &log)
	ask := func(odd string) answer {
		raw.Store(nil)
		eventually(t, "the engine is up", func() bool { return c.post(chatPath, chatBody("")).status == 200 })
		raw.Store(&odd)
		return c.post(chatPath, chatBody(""))
	}
	for odd, want := range map[string]int{
		"HTTP/1.1 " + told + "\r\n\r\n":                                                             502,
		told + " 200 OK\r\n\r\n":                                                                    502,
		"HTTP/1.1 200 OK\r\n" + told + "\r\n\r\n":                                                   502,
		"HTTP/1.1 200 OK\r\nContent-Length: " + told + "\r\n\r\n":                                   502,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + told + "\r\n\r\n":                                502,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + told + "\r\n\r\n": 502,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + told + "\r\n":                     502,
		"HTTP/1.1 301 " + told + "\r\nLocation: http://" + told + "\r\n\r\n":                        502,
		"HTTP/1.1 401 No\r\nX: " + told + "\r\n\r\n{\"error\":\"" + told + "\"}":                    401,
		"HTTP/1.1 401 No\r\nX: " + told + "\r\nContent-Length: 0\r\n\r\n":                           401,
		"HTTP/1.1 401 No\r\n\r\n{\"error\":{\"message\":\"no " + told + "\"}}\r\n":                  401,
	} {
		got := ask(odd)
		if got.status != want && got.status != 503 || gjson.Get(got.body, "error.message").String() == "" {
			t.Errorf("%q: %d %s", odd, got.status, got.body)
		}
		for name, values := range got.header {
			if strings.Contains(name+strings.Join(values, ""), told) {
				t.Errorf("%q: header %s: %q", odd, name, values)
			}
		}
		if strings.Contains(got.body, told) {
			t.Errorf("%q: the client got %s", odd, got.body)
		}
		if debug := c.get("/debug/servers").body; strings.Contains(debug, told) {
			t.Errorf("%q: the admin port says %s", odd, debug)
		}
	}
	raw.Store(nil)
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), told) || !strings.Contains(log.String(), "not valid HTTP") {
		t.Errorf("the log says %s", log.String())
	}
	if text := traces.String(); strings.Contains(text, told) || text == "" {
		t.Error("traces repeat it, or there are none")
	}
}

// What follows an answer is quoted to the standard logger by net/http, and by the client of engines not at all.
func TestDiscreet_WhatFollowsAnAnswerIsNotLogged(t *testing.T) {
	const told = "s3cr3t-of-the-engine"
	more := make(chan net.Conn, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"+told)
			more <- conn
		}
	}))
	defer server.Close()
	var text testlog.Buffer
	flags := log.Flags()
	log.SetFlags(0)
	log.SetOutput(libraryLog{newTestLog(&text)})
	defer log.SetOutput(os.Stderr)
	defer log.SetFlags(flags)
	engines, err := (&enginesConfig{}).transport(newTestLog(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []http.RoundTripper{engines, new(http.Transport)} {
		resp, err := (&http.Client{Transport: transport, Timeout: testTimeout}).Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
		_ = resp.Body.Close()
		defer func() { _ = (<-more).Close() }()
	}
	eventually(t, "net/http has said so", func() bool { return strings.Contains(text.String(), "Unsolicited response") })
	if strings.Contains(text.String(), told) {
		t.Errorf("the log says %s", text.String())
	}
}
