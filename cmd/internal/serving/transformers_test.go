package serving

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// transformersServer answers as Hugging Face's transformers serve does: a model's creation
// has a fraction, and a stream ends without [DONE]. A chat with n=2 gets two choices, one
// that asks for "half" loses its end.
func transformersServer(t *testing.T) string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"ok"}`) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","created":1755000000.1234,"owned_by":"hf"}]}`, testModel)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body := new(strings.Builder)
		_ = r.Write(body) // it is in memory
		w.Header().Set("Content-Type", "text/event-stream")
		chunk := func(index int, delta, finish string) {
			fmt.Fprintf(w, `data: {"id":"req","object":"chat.completion.chunk","created":1755000000,"model":%q,"choices":[{"index":%d,"delta":%s,"finish_reason":%s}]}`+"\n\n", testModel, index, delta, finish)
		}
		half := strings.Contains(body.String(), "half")
		for i := range 1 + strings.Count(body.String(), `"n":2`) {
			chunk(i, `{"role":"assistant","content":"he"}`, "null")
			if !half || i == 0 && strings.Contains(body.String(), `"n":2`) {
				chunk(i, `{"content":"llo"}`, `"stop"`)
			}
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// A stream is whole when all of its choices have a finish_reason and it ends cleanly: the
// end marker that some engines leave out is then the gateway's.
func TestTransformers_AnEndWithoutDone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[1].add(serverEntry{URL: transformersServer(t), Connector: "aggregated"})
	}})
	eventually(t, "the server is up", func() bool { return c.metric("tandem_server_up", "") == 1 })
	for name, test := range map[string]struct {
		prompt, more string
		whole        bool
	}{
		"one choice":         {"hello", "", true},
		"two choices":        {"hello", `,"n":2`, true},
		"cut":                {"half", "", false},
		"one of two choices": {"half", `,"n":2`, false},
	} {
		got := c.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":%q}]%s}`, testModel, test.prompt, test.more))
		last := ""
		if len(got.events) > 0 {
			last = got.events[len(got.events)-1]
		}
		if whole := last == "[DONE]" && !strings.Contains(got.body, `"error"`); got.status != 200 || whole != test.whole {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

// The same over a hand-off: the usage, which is in the last chunk, is the client's too.
func TestTransformers_AnEndWithoutDoneOfAPair(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultNoDone})
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody(`,"stream":true,"stream_options":{"include_usage":true}`),
		"/v1/completions":      `{"model":"` + testModel + `","prompt":"hello","stream":true,"max_tokens":3}`,
	} {
		got := c.post(path, body)
		if n := len(got.events); got.status != 200 || n < 2 || got.events[n-1] != "[DONE]" || strings.Contains(got.body, `"error"`) {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		if path == "/v1/chat/completions" && strings.Count(got.body, `"usage":{`) != 1 {
			t.Errorf("%s: %s", path, got.body)
		}
	}
	if n := c.metric("tandem_streams_broken_total", ""); n > 0 {
		t.Errorf("%v streams broke", n)
	}
}
