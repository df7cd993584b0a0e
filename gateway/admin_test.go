package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A browser shows its certificate whatever page makes it ask; a token it does not know.
func TestGuarded_ACertificateIsNotEnoughForAPageOfAnotherSite(t *testing.T) {
	admin := RequireToken("t0ken", true, nil, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, x := range []struct {
		name  string
		tls   *tls.ConnectionState
		token string
		site  string
		want  int
	}{
		{"certificate", verified, "", "", 200},
		{"certificate, own page", verified, "", "same-origin", 200},
		{"certificate, other page", verified, "", "cross-site", 403},
		{"certificate that was not verified", &tls.ConnectionState{}, "", "", 401},
		{"token, other page", verified, "Bearer t0ken", "cross-site", 200},
		{"wrong token", nil, "Bearer token", "", 401},
		{"nothing", nil, "", "", 401},
	} {
		req := httptest.NewRequest(http.MethodPost, "/drain/a", nil)
		req.TLS = x.tls
		req.Header.Set("Authorization", x.token)
		req.Header.Set("Sec-Fetch-Site", x.site)
		got := httptest.NewRecorder()
		admin.ServeHTTP(got, req)
		if got.Code != x.want {
			t.Errorf("%s: %d, want %d", x.name, got.Code, x.want)
		}
	}
}
