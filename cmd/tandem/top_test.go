package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// top --once prints the view of the model that is asked for, with the token that the port wants.
func TestTop_Once(t *testing.T) {
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ui/state" || r.URL.Query().Get("model") != "a&b" || r.Header.Get("Authorization") != "Bearer s3cret" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(`{"gateway":{"version":"v9","ready":true},"servers":[{"id":"p:8000","role":"prefill","state":"down","models":["a&b"],"prefill":{"breaker":"open"}}],"history":{"model":"a&b"}}`))
	}))
	defer admin.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "top", "--once", "--model", "a&b", "--admin", admin.URL, "--admin-token-file", token)
	if err != nil || !strings.HasPrefix(out, "tandem  v9  ready") || !strings.Contains(out, "a&b, last minute") || !strings.Contains(out, "P1   p:8000") || strings.Contains(out, "\x1b") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := run(t, "top", "--once", "--admin", admin.URL, "--interval", "0s"); err == nil {
		t.Error("an interval of nothing is taken")
	}
}
