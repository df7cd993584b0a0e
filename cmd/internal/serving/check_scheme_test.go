package serving

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A server that speaks TLS where its URL says plain text, or the other way round, is said to.
func TestCheck_NamesTheWrongScheme(t *testing.T) {
	t.Parallel()
	healthy := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	encrypted, plain := httptest.NewTLSServer(healthy), httptest.NewServer(healthy)
	defer encrypted.Close()
	defer plain.Close()
	asTLS := func(status int) string { // what a port of TLS answers to plain text, if anything
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(s.Close)
		return strings.Replace(s.URL, "http", "https", 1)
	}
	for url, want := range map[string]string{
		asTLS(http.StatusBadRequest):                       "does not look like a TLS handshake",
		asTLS(http.StatusMovedPermanently):                 "does not look like a TLS handshake",
		asTLS(http.StatusUpgradeRequired):                  "does not look like a TLS handshake",
		strings.Replace(encrypted.URL, "https", "http", 1): "it speaks TLS: write https:// in front",
		strings.Replace(plain.URL, "http", "https", 1):     "it speaks plain text: write http:// in front",
		encrypted.URL:        "certificate", // of an authority that nobody trusts
		"http://127.0.0.1:1": "refused",
	} {
		fault, printed := checked(t, func(cfg *config) { cfg.servers[2].add(serverEntry{URL: url}) })
		if !strings.Contains(fault, want) || strings.Contains(fault, "in front") != strings.Contains(want, "in front") {
			t.Errorf("%s: %q\n%s", url, fault, printed)
		}
	}
}
