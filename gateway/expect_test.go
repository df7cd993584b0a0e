package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A client that waits with its body is asked for it when its head is right, and not before.
func TestExpect_RefusedByItsHeadIsNotAskedForItsBody(t *testing.T) {
	const limit = 1 << 20
	of := usual(t, "ada")
	of.config = func(c *Config) { c.MaxBody = limit }
	e := complete()
	g := run(t, of, e.roundTrip, alone(t))
	const key, waits, sized = "Authorization: Bearer sk-ada\r\n", "Expect: 100-continue\r\n", "Content-Length: 100000\r\n"
	for _, x := range []struct {
		name, line, headers string
		want                string
	}{
		{"no key", "POST /v1/completions", sized, "401 Unauthorized"},
		{"another key", "POST /v1/completions", sized + "X-Api-Key: sk-eve\r\n", "401 Unauthorized"},
		{"no key, in chunks", "POST /v1/completions", "Transfer-Encoding: chunked\r\n", "401 Unauthorized"},
		{"no key, Anthropic's API", "POST /v1/messages", sized, "401 Unauthorized"},
		{"a coding that is not decoded", "POST /v1/completions", sized + key + "Content-Encoding: lz4\r\n", "415 Unsupported Media Type"},
		{"a body beyond the limit", "POST /v1/completions", fmt.Sprintf("Content-Length: %d\r\n", limit+1) + key, "413 Request Entity Too Large"},
		{"no such path", "POST /v1/nothing", sized + key, "404 Not Found"},
		{"no such method", "PUT /v1/completions", sized + key, "405 Method Not Allowed"},
		{"an API that no server speaks", "POST /generate", sized + key, "404 Not Found"},
	} {
		got := g.say(x.line + " HTTP/1.1\r\nHost: a\r\n" + waits + x.headers + "\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 "+x.want+"\r\n") || strings.Count(got, "HTTP/1.1 ") != 1 || !strings.Contains(got, `"error":`) || !strings.Contains(got, "Connection: close\r\n") {
			t.Errorf("%s: %.500s", x.name, got)
		}
	}
	if n := testutil.ToFloat64(g.server.metrics.requests.WithLabelValues("completions", "unknown", "unauthorized", "http")); n != 3 {
		t.Errorf("%v are counted as without a key, want 3", n)
	}
	// One that does not wait gets its answer all the same.
	if got := g.say(completionHead(waits+"Content-Length: 1000000\r\n") + strings.Repeat(" ", 1_000_000)); !strings.HasPrefix(got, "HTTP/1.1 401 ") || strings.Count(got, "HTTP/1.1 ") != 1 {
		t.Errorf("a body that came at once: %.500s", got)
	}
	if legs := e.take(); len(legs) != 0 {
		t.Errorf("engines got %+v", legs)
	}
}

func TestExpect_AsksForTheBody(t *testing.T) {
	e := complete()
	g := run(t, usual(t, "ada"), e.roundTrip, alone(t))
	conn := g.dial()
	in := bufio.NewReader(conn)
	const body = `{"model":"m","prompt":"hi"}`
	for _, headers := range []string{"Content-Length: 27\r\n", "Transfer-Encoding: chunked\r\n"} {
		text, head := body, completionHead("Authorization: Bearer sk-ada\r\nExpect: 100-continue\r\n"+headers)
		if strings.HasPrefix(headers, "Transfer") {
			text, head = chunks(body, 10), strings.Replace(head, "/v1/", "http://a/v1/", 1)
		}
		for _, part := range []struct {
			text   string
			status int
		}{{head, 100}, {text, 200}} {
			if _, err := io.WriteString(conn, part.text); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != part.status {
				t.Fatalf("%s: %v, %v, want %d", headers, resp, err, part.status)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		if got := e.body(t); !strings.HasPrefix(got, strings.TrimSuffix(body, "}")) {
			t.Errorf("%s: the engine got %s", headers, got)
		}
	}
}

// Java's HttpClient spells it with a capital letter, and waits for as long as it takes.
func TestExpect_AnySpellingIsAskedForItsBody(t *testing.T) {
	e := complete()
	g := run(t, usual(t, "ada"), e.roundTrip, alone(t))
	for _, expect := range []string{"100-Continue", "100-CONTINUE"} {
		conn := g.dial()
		in := bufio.NewReader(conn)
		for _, part := range []struct {
			text   string
			status int
		}{
			{completionHead("Authorization: Bearer sk-ada\r\nExpect: " + expect + "\r\nContent-Length: 27\r\n"), 100},
			{`{"model":"m","prompt":"hi"}`, 200},
		} {
			if _, err := io.WriteString(conn, part.text); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != part.status {
				t.Fatalf("%s: %v, %v, want %d", expect, resp, err, part.status)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	}
}

// HTTP/1.0 has no interim answers: a client takes 100 for the answer to its request (RFC 9110, 10.1.1).
func TestExpect_OfHTTP10IsIgnored(t *testing.T) {
	e := complete()
	g := run(t, usual(t, "ada"), e.roundTrip, alone(t))
	head := strings.Replace(completionHead("Authorization: Bearer sk-ada\r\nExpect: 100-continue\r\nContent-Length: 27\r\n"), "HTTP/1.1", "HTTP/1.0", 1)
	if got := g.say(head + `{"model":"m","prompt":"hi"}`); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || strings.Count(got, "HTTP/1.") != 1 {
		t.Errorf("%.500s", got)
	}
}
