package serving

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// An engine that refuses every field that it does not know, and streams responses unless it is told
// not to (Hugging Face's transformers serve), is served like any other: on all of its APIs, streamed
// and whole. It needs no configuration.
func TestTransformersServe_IsServedLikeAnyOther(t *testing.T) {
	c := newCluster(t, shape{decode: 1, engine: func(cfg *engine.Config) { cfg.TransformersServe = true }})
	for path, body := range map[string]string{
		"/v1/chat/completions": `{"model":"test-model","messages":[{"role":"user","content":"tell me of the river"}],"max_tokens":12`,
		"/v1/completions":      `{"model":"test-model","prompt":"tell me of the river","max_tokens":12`,
		"/v1/responses":        `{"model":"test-model","input":"tell me of the river","max_output_tokens":12`,
	} {
		want := reference(t, path, body+"}").text()
		for range 2 {
			for _, stream := range []string{"", `,"stream":false`, `,"stream":true`} {
				got := c.post(path, body+stream+"}")
				if got.status != 200 || got.text() != want || want == "" || strings.Contains(got.body, `token_ids":[`) {
					t.Errorf("%s%s: %d %q, want %q\n%.300s", path, stream, got.status, got.text(), want, got.body)
				}
			}
		}
	}
	// That it knows no token ids is learned at the first stream that asks for them.
	refused := 0
	for _, r := range requests(c.decode, "/v1/chat/completions") {
		if gjson.Get(r.Body, "return_token_ids").Exists() {
			refused++
		}
	}
	if refused > 1 || c.metric("tandem_retries_total") != 0 {
		t.Errorf("asked for token ids %d times, %v retries", refused, c.metric("tandem_retries_total"))
	}
	got := c.post("/v1/chat/completions", `{"model":"test-model","messages":[{"role":"user","content":"hi"}],"stream":true,"nonsense":1}`)
	if message := gjson.Get(got.body, "error.message").Str; got.status != 422 || !strings.Contains(message, "nonsense") {
		t.Errorf("a field that it does not know: %d %s", got.status, got.body)
	}
}
