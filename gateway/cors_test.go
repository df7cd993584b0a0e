package gateway

import (
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
		if read := got.header.Get("Access-Control-Expose-Headers"); got.status != 200 || got.header.Get("Access-Control-Allow-Origin") != x.allowed || x.allowed != "" && !strings.Contains(read, "X-Request-Id") || got.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%q gets of %q: %d %v", x.origin, x.origins, got.status, got.header)
		}
	}
}
