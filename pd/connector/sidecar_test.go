package connector

import (
	"net/http"
	"testing"
)

// What prefill answered is at fault only where the sidecar's own error says so: in its shape, by a
// 400, with the words of Go's decoder. A client's bad request has the engine's words.
func TestPrefillUnread_IsTheSidecarsErrorAlone(t *testing.T) {
	of := func(message string) string {
		return `{"object":"error","message":"` + message + `","type":"BadRequestError","param":"","code":400}`
	}
	for _, c := range []struct {
		status int
		body   string
		want   bool
	}{
		{http.StatusBadRequest, of("invalid character 'd' looking for beginning of value"), true},
		{http.StatusBadRequest, of("unexpected end of JSON input"), true},
		{http.StatusBadRequest, of("json: cannot unmarshal array into Go value of type map[string]interface {}"), true},
		{http.StatusBadGateway, of("unexpected end of JSON input"), false},
		{http.StatusBadRequest, of("invalid JSON: unexpected end of JSON input"), false}, // the client's body
		{http.StatusBadRequest, of("max_tokens must be at least 1"), false},
		{http.StatusBadRequest, `{"error":{"message":"unexpected end of JSON input","type":"BadRequestError"}}`, false},
		{http.StatusBadRequest, "unexpected end of JSON input", false},
	} {
		if got := PrefillUnread(c.status, []byte(c.body)); got != c.want {
			t.Errorf("%d %s: %v", c.status, c.body, got)
		}
	}
}
