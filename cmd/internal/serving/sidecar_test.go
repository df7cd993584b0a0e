package serving

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// sglangSidecar is llm-d's sidecar with --kv-connector=sglang in front of a decode server: where a request names a
// prefill server both get it at once, with a room to meet in, and else the decode server alone (llm-d-router
// pkg/sidecar/proxy/connector_sglang.go at ebab687, August 2026). The prefill server's bootstrap port is given.
func sglangSidecar(t *testing.T, decode *engine.Engine, bootstrapPort json.Number) *httptest.Server {
	t.Helper()
	to, err := url.Parse(decode.URL())
	if err != nil {
		t.Fatal(err)
	}
	var rooms atomic.Int64
	forward := httputil.NewSingleHostReverseProxy(to)
	forward.FlushInterval = -1
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prefill := r.Header.Get("X-Prefiller-Host-Port")
		r.Header.Del("X-Prefiller-Host-Port")
		if prefill != "" {
			var fields map[string]any
			if err := json.NewDecoder(r.Body).Decode(&fields); err != nil {
				t.Error(err)
			}
			fields["bootstrap_host"], _, _ = net.SplitHostPort(prefill)
			fields["bootstrap_port"], fields["bootstrap_room"] = bootstrapPort, rooms.Add(1)
			body, err := json.Marshal(fields)
			if err != nil {
				t.Error(err)
			}
			leg, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, "http://"+prefill+r.URL.Path, bytes.NewReader(body))
			if err != nil {
				t.Error(err)
			}
			leg.Header = r.Header.Clone()
			go func() {
				if answer, err := http.DefaultClient.Do(leg); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			}()
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// An SGLang in decode mode computes no prompt, behind a sidecar either: short prompts need a prefill server too.
func TestSidecar_OfSGLangGetsNoPromptWithoutAPrefillServer(t *testing.T) {
	prefill, decode := startTestEngine(t, engine.RolePrefill, sglangEngine), startTestEngine(t, engine.RoleDecode, sglangEngine)
	_, port, _ := net.SplitHostPort(prefill.State().KVAddress)
	beside := sglangSidecar(t, decode, json.Number(port))
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: prefill.URL(), Connector: "llmd-sidecar"})
		cfg.servers[1].add(serverEntry{URL: beside.URL, Connector: "llmd-sidecar"})
	}})
	eventually(t, "both are up", func() bool { return c.metric("tandem_server_up") == 2 })
	short := `{"model":"test-model","max_tokens":4,"messages":[{"role":"user","content":"hi"}]`
	for _, body := range []string{short + `}`, short + `,"stream":true}`, chatBody("")} {
		if got := c.post("/v1/chat/completions", body); got.status != 200 || got.err != nil || got.header.Get("X-Tandem-Prefill") == "" {
			t.Errorf("%d %v, prefilled on %q: %s", got.status, got.err, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if got := c.post(messagesPath, short+`}`); got.status != 200 || gjson.Get(got.body, "type").String() != "message" || got.header.Get("X-Tandem-Prefill") == "" {
		t.Errorf("a message: %d %s", got.status, got.body)
	}
	// Two answers of one prompt cannot meet in a room, and there is no server for them.
	if got := c.post("/v1/chat/completions", short+`,"n":2}`); got.status == 200 || strings.Contains(got.body, "bootstrap") {
		t.Errorf("%d %s", got.status, got.body)
	}
}
