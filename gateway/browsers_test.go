package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A Host names the admin port if it can name no other: who owns a public name may point it here.
func TestIsOwnName(t *testing.T) {
	names := []string{"tandem.example.com"}
	for host, own := range map[string]bool{
		"127.0.0.1": true, "10.0.0.1:9090": true, "[::1]": true, "[::1]:9090": true, "tandem": true, "tandem:9090": true,
		"a.localhost": true, "a.local:1": true, "a.internal": true, "tandem.default.svc": true, "A.LOCAL": true, "a.local.": true,
		"tandem.example.com": true, "TANDEM.example.com:9090": true, "tandem.example.com.": true,
		"evil.com": false, "evil.com:9090": false, "tandem.example.com.evil.com": false, "evil.svc.com": false, "": false, ":9090": false, "svc.evil": false, "other.example.com": false,
	} {
		if got := isOwnName(host, names); got != own {
			t.Errorf("%q: %v", host, got)
		}
	}
	if isOwnName("tandem.example.com", nil) {
		t.Error("a name that it was not given")
	}
}

func TestCrossSite(t *testing.T) {
	for _, x := range []struct {
		site, origin string
		across       bool
	}{
		{"", "", false}, {"none", "", false}, {"same-origin", "", false}, {"same-site", "", true}, {"cross-site", "", true},
		{"", "http://tandem:9090", false}, {"", "http://TANDEM:9090", false}, {"", "http://evil.com", true}, {"", "http://tandem:80", true}, {"", "null", true}, {"", "http://%zz", true},
		{"same-origin", "http://evil.com", true},
	} {
		r := httptest.NewRequest(http.MethodPost, "http://tandem:9090/drain/a", nil)
		r.Header.Set("Sec-Fetch-Site", x.site)
		r.Header.Set("Origin", x.origin)
		if got := crossSite(r); got != x.across {
			t.Errorf("site %q, origin %q: %v", x.site, x.origin, got)
		}
	}
}

// An admin port without a token refuses browsers that a page of another site sends; kubelets
// and load balancers are always let in.
func TestGuarded_WithoutATokenBrowsersAreRefused(t *testing.T) {
	admin := RequireToken(always(""), false, []string{"tandem.example.com"}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }))
	for _, x := range []struct {
		name, host, path, site string
		want                   int
	}{
		{"an address", "10.0.0.1", "/metrics", "", 202},
		{"its name", "tandem.example.com", "/metrics", "", 202},
		{"another name", "evil.com", "/metrics", "", 403},
		{"another site", "10.0.0.1", "/metrics", "cross-site", 403},
		{"a kubelet", "evil.com", "/livez", "cross-site", 202},
		{"a load balancer", "evil.com", "/readyz", "", 202},
		{"neither", "evil.com", "/readyz/x", "", 403},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+x.host+x.path, nil)
		r.Header.Set("Sec-Fetch-Site", x.site)
		got := httptest.NewRecorder()
		admin.ServeHTTP(got, r)
		if got.Code != x.want {
			t.Errorf("%s: %d, want %d", x.name, got.Code, x.want)
		}
	}
}

// Where a token is asked for, a client that shows it is let in by any name, and no other but
// kubelets and load balancers.
func TestGuarded_AToken(t *testing.T) {
	admin := RequireToken(always("t0ken"), false, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }))
	for _, x := range []struct {
		path, token string
		want        int
	}{
		{"/metrics", "Bearer t0ken", 202}, {"/metrics", "Bearer ", 401}, {"/metrics", "", 401}, {"/metrics", "t0ken", 401}, {"/livez", "", 202}, {"/readyz", "", 202},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://any.name.com"+x.path, nil)
		r.Header.Set("Authorization", x.token)
		got := httptest.NewRecorder()
		admin.ServeHTTP(got, r)
		if got.Code != x.want || (got.Header().Get("WWW-Authenticate") != "") != (x.want == 401) {
			t.Errorf("%s with %q: %d %v, want %d", x.path, x.token, got.Code, got.Header(), x.want)
		}
		if wrong := strings.Contains(got.Body.String(), "is not the admin port's token"); wrong != (x.want == 401 && x.token != "") {
			t.Errorf("%s with %q: %s", x.path, x.token, got.Body)
		}
	}
}
