package serving

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// retainingServer is a vLLM with bidirectional_kv_xfer: its answers say where their blocks
// are kept for a prefill to fetch, in the body or the last chunk.
func retainingServer(t *testing.T) string {
	const handoff = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_host":"10.0.0.9"},"ec_transfer_params":{"h":{"peer_host":"10.0.0.8"}}`
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model","created":1,"owned_by":"vllm"}]}`, testModel)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what is missing of it shows in the answer
		if !bytes.Contains(body, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],%s}`, handoff)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],%s}\n\ndata: [DONE]\n\n", handoff)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// An engine that keeps the blocks of its answers keeps them for no server here: each is
// counted, the first is warned of, and no client sees where they are.
func TestRetained_DecodesOwnHandoffIsWarnedOf(t *testing.T) {
	t.Parallel()
	var log testlog.Buffer
	c := newCluster(t, shape{log: &log, config: func(cfg *config) {
		cfg.servers[1].add(serverEntry{URL: retainingServer(t), Connector: "aggregated"})
	}})
	eventually(t, "the server is up", func() bool { return c.metric("tandem_server_up") == 1 })
	for _, extra := range []string{"", `,"stream":true`, ""} {
		got := c.post("/v1/chat/completions", chatBody(extra))
		if got.status != 200 || strings.Contains(got.body, "10.0.0.") || strings.Contains(got.body, "transfer_params") {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	eventually(t, "all are counted", func() bool { return c.metric("tandem_handoffs_retained_total") == 3 })
	if n := strings.Count(log.String(), "decode answers with a hand-off"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}
