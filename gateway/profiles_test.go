package gateway

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Profiles are for who has shown the port's token, or where it asks for none for this machine alone; all
// else of the port is as it was.
func TestProfiles_AreForThisMachineOrTheToken(t *testing.T) {
	rest := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	open := RequireToken(always(""), false, nil, WithProfiles(false, rest))
	token := RequireToken(always("secret"), false, nil, WithProfiles(true, rest))
	for _, x := range []struct {
		name         string
		port         http.Handler
		from, bearer string
		path         string
		want         int
	}{
		{"this machine", open, "127.0.0.1:5", "", "/debug/pprof/goroutine", 200},
		{"this machine by IPv6", open, "[::1]:5", "", "/debug/pprof/goroutine", 200},
		{"another machine", open, "10.0.0.9:5", "", "/debug/pprof/goroutine", 403},
		{"another machine, the command line", open, "10.0.0.9:5", "", "/debug/pprof/cmdline", 403},
		{"what is no address", open, "pipe", "", "/debug/pprof/goroutine", 403},
		{"another machine with the token", token, "10.0.0.9:5", "Bearer secret", "/debug/pprof/goroutine", 200},
		{"this machine without the token", token, "127.0.0.1:5", "", "/debug/pprof/goroutine", 401},
		{"another path from another machine", open, "10.0.0.9:5", "", "/debug/servers", 418},
	} {
		req := httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+x.path, nil)
		req.RemoteAddr = x.from
		req.Header.Set("Authorization", x.bearer)
		got := httptest.NewRecorder()
		x.port.ServeHTTP(got, req)
		if got.Code != x.want {
			t.Errorf("%s: %d, want %d", x.name, got.Code, x.want)
		}
	}
}
