package adminport

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// That a page is not there says nothing of what was asked for: the address is wrong then.
func TestGet_TellsAPageThatIsNotThereFromWhatIsNotFound(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/decisions/{id}", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no decision is remembered for this request id", http.StatusNotFound)
	})
	mux.HandleFunc("GET /ui/", http.NotFound)
	admin := httptest.NewServer(mux)
	defer admin.Close()
	for address, want := range map[string]string{
		admin.URL:          "not found: no decision is remembered for this request id",
		admin.URL + "/":    "not found: no decision is remembered for this request id",
		admin.URL + "/ui/": admin.URL + "/ui/debug/decisions/x is not a page of the admin port: give --admin the address that the gateway has as --admin, without a path",
	} {
		err := Port{Address: address}.Get(t.Context(), "/debug/decisions/x", new(any))
		if err == nil || err.Error() != want || errors.Is(err, ErrNotFound) != strings.HasPrefix(want, "not found") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if err := (Port{Address: admin.URL + "/ui/"}).Do(t.Context(), http.MethodPost, "/drain/a:1"); err == nil || !strings.Contains(err.Error(), "/ui/drain/a:1 is not a page") {
		t.Error(err)
	}
}
