package gateway

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
)

// An origin is what a browser sends as one: a scheme and a host, and perhaps a port.
func TestCheckOrigins(t *testing.T) {
	for origins, valid := range map[string]bool{
		"": true, "*": true, "https://chat.example.com": true, "http://localhost:3000": true, "https://a.com http://b.com:1": true, "http://[::1]:80": true,
		"* https://a.com": false, "https://a.com *": false, "https://a.com/": false, "https://a.com?b": false, "https://a.com#b": false, "https://u@a.com": false,
		"a.com": false, "//a.com": false, "ftp://a.com": false, "https://": false, "https:a.com": false, "https://a.com,https://b.com": false, "http://%zz": false, "https://a.com nonsense": false,
	} {
		if err := checkOrigins(strings.Fields(origins)); (err == nil) != valid {
			t.Errorf("%q: %v", origins, err)
		}
	}
}

// Pages of the origins that are named may ask and read what SDKs read of an answer; those of
// others may not, and where none is named no page is told anything.
func TestCrossOrigin(t *testing.T) {
	for _, x := range []struct {
		origins []string
		origin  string
		allowed string
	}{
		{[]string{"https://a.com"}, "https://a.com", "https://a.com"}, {[]string{"https://a.com"}, "https://b.com", ""}, {[]string{"*"}, "https://b.com", "*"}, {nil, "https://a.com", ""},
	} {
		of := usual(t)
		of.config = func(c *Config) { c.Origins = x.origins }
		g := run(t, of, complete().roundTrip, alone(t))
		preflight := g.ask(http.MethodOptions, "/v1/completions", "", "Origin", x.origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
		if got := preflight.header.Get("Access-Control-Allow-Origin"); got != x.allowed || x.allowed != "" && (preflight.status != 204 || preflight.header.Get("Access-Control-Allow-Methods") != "GET,POST" || preflight.header.Get("Access-Control-Max-Age") != "600") {
			t.Errorf("%q asks %q: %d %v", x.origin, x.origins, preflight.status, preflight.header)
		}
		got := g.post(`{"model":"m","prompt":"hi"}`, "Origin", x.origin)
		if read := got.header.Get("Access-Control-Expose-Headers"); got.status != 200 || got.header.Get("Access-Control-Allow-Origin") != x.allowed || x.allowed != "" && !(strings.Contains(read, "X-Request-Id") && strings.Contains(read, "Metadata")) || got.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%q gets of %q: %d %v", x.origin, x.origins, got.status, got.header)
		}
	}
}

// A page learns why its message was refused before a handler saw it: a body beyond the limit says how
// long it is, and a browser hides an answer without the header.
func TestCrossOrigin_APageReadsWhyItsBodyIsRefused(t *testing.T) {
	for _, x := range []struct{ allowed, origin, want string }{
		{"https://a.com", "https://a.com", "https://a.com"}, {"https://a.com", "https://b.com", ""}, {"https://a.com", "", ""}, {"*", "https://b.com", "*"},
		{"https://*.a.com", "https://chat.a.com", "https://chat.a.com"}, {"https://*.a.com", "https://a.com", ""}, {"https://*.a.com", "http://chat.a.com", ""},
		{"https://*.a.com", "https://chata.com", ""}, {"", "https://a.com", ""},
	} {
		of := usual(t)
		of.config = func(c *Config) { c.Origins = strings.Fields(x.allowed) }
		g := run(t, of, complete().roundTrip, alone(t))
		message := "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n"
		if x.origin != "" {
			message += "Origin: " + x.origin + "\r\n"
		}
		got, err := http.ReadResponse(bufio.NewReader(strings.NewReader(g.say(message+"\r\n"))), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if allows := got.Header.Get("Access-Control-Allow-Origin"); got.StatusCode != 413 || allows != x.want || allows != "" && !strings.Contains(got.Header.Get("Access-Control-Expose-Headers"), "X-Should-Retry") {
			t.Errorf("%q asks %q: %d %v", x.origin, x.allowed, got.StatusCode, got.Header)
		}
		later := g.say("GET /health HTTP/1.1\r\nHost: a\r\nOrigin: " + x.origin + "\r\n\r\n" + "GET / HTTP/2.0\r\nHost: a\r\n\r\n")
		if _, refusal, _ := strings.Cut(later, "HTTP/1.1 505 "); refusal == "" || strings.Contains(refusal, "Access-Control-Allow-Origin") {
			t.Errorf("the origin of the message before: %s", later)
		}
	}
}
