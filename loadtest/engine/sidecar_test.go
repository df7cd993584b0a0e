package engine

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// sidecarPair is a prefill engine, and a decode engine behind the sidecar.
func sidecarPair(t *testing.T, change func(*Config)) (prefill, decode *Engine) {
	t.Helper()
	of := func(role string) *Engine {
		return start(t, func(cfg *Config) {
			cfg.Role, cfg.Connector = role, ConnectorSidecar
			if change != nil {
				change(cfg)
			}
		})
	}
	return of(RolePrefill), of(RoleDecode)
}

// throughSidecar sends a body to the sidecar of decode with headers, "name: value".
func throughSidecar(t *testing.T, ctx context.Context, decode *Engine, path, body string, headers ...string) (status int, answer string, header http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, decode.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		if name, value, ok := strings.Cut(line, ": "); ok {
			req.Header.Set(name, value)
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw), resp.Header
}

func address(e *Engine) string { return strings.TrimPrefix(e.URL(), "http://") }

const sidecarChat = `{"messages":[{"role":"user","content":"tell me of the river and of the sea"}],"max_tokens":9,"min_tokens":4,"stream_options":{"include_usage":true},"stream":true}`

// The prefill server gets the client's request with one token to compute, no stream, and
// its own headers; decode gets the client's request with the hand-off, and pulls it.
func TestSidecar_APrefillServerIsAskedForOneToken(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/chat/completions": sidecarChat,
		"/v1/completions":      `{"prompt":"tell me of the river and of the sea","max_tokens":9,"min_tokens":4}`,
		"/v1/messages":         `{"messages":[{"role":"user","content":"tell me of the river and of the sea"}],"max_tokens":9,"model":"sim-model"}`,
		"/v1/responses":        `{"input":"tell me of the river and of the sea","max_output_tokens":9}`,
	} {
		prefill, decode := sidecarPair(t, nil)
		status, answer, _ := throughSidecar(t, t.Context(), decode, path, body,
			"X-Prefiller-Host-Port: http://"+address(prefill)+" , 127.0.0.1:1", "X-Request-Id: of-the-client")
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, answer)
			continue
		}
		asked, _ := prefill.recorder.list()
		if len(asked) != 1 || asked[0].RequestID != "of-the-client" {
			t.Errorf("%s: prefill was asked %+v", path, asked)
			continue
		}
		sent := gjson.Parse(asked[0].Body)
		for _, field := range sidecarLimits[path] {
			if sent.Get(field).Int() != 1 {
				t.Errorf("%s: %s of the prefill leg is %s", path, field, sent.Get(field))
			}
		}
		if sent.Get("stream").Raw != "false" || sent.Get("stream_options").Exists() || !sent.Get("kv_transfer_params.do_remote_decode").Bool() {
			t.Errorf("%s: prefill leg %s", path, asked[0].Body)
		}
		if p, d := prefill.State(), decode.State(); p.PrefillsDone != 1 || p.HandoffsPulled != 1 || d.DecodesDone != 1 || d.Recomputed != 0 {
			t.Errorf("%s: prefill %+v\ndecode %+v", path, p, d)
		}
	}
}

// Without the header the engine computes the whole request.
func TestSidecar_WithoutTheHeaderDecodeComputesAlone(t *testing.T) {
	prefill, decode := sidecarPair(t, nil)
	if status, answer, _ := throughSidecar(t, t.Context(), decode, "/v1/chat/completions", sidecarChat); status != http.StatusOK {
		t.Errorf("%d %s", status, answer)
	}
	if p, d := prefill.State(), decode.State(); p.PrefillsDone != 0 || d.AggregatedDone != 1 {
		t.Errorf("prefill %+v\ndecode %+v", p, d)
	}
}

// What the prefill server refuses is passed to the client as it is; a prefill server that does
// not answer is a 502 without a body.
func TestSidecar_AnErrorOfPrefillIsTheAnswer(t *testing.T) {
	prefill, decode := sidecarPair(t, nil)
	to := "X-Prefiller-Host-Port: " + address(prefill)
	prefill.SetFault(Fault{Kind: FaultStatus, Status: http.StatusServiceUnavailable, Path: "/v1/chat/completions"})
	status, answer, header := throughSidecar(t, t.Context(), decode, "/v1/chat/completions", sidecarChat, to)
	if status != http.StatusServiceUnavailable || !gjson.Get(answer, "error.message").Exists() || header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v %s", status, header, answer)
	}
	prefill.ClearFaults()
	prefill.SetFault(Fault{Kind: FaultRefuse})
	if status, answer, _ = throughSidecar(t, t.Context(), decode, "/v1/chat/completions", sidecarChat, to); status != http.StatusBadGateway || answer != "" {
		t.Errorf("%d %q", status, answer)
	}
	if d := decode.State(); d.DecodesDone != 0 || d.AggregatedDone != 0 {
		t.Errorf("decode %+v", d)
	}
}

// A prefill answer without a hand-off sends decode on without one: it computes the prompt.
func TestSidecar_WithoutAHandoffDecodeComputes(t *testing.T) {
	prefill := start(t, func(cfg *Config) { cfg.Connector = ConnectorStore })
	_, decode := sidecarPair(t, nil)
	status, answer, _ := throughSidecar(t, t.Context(), decode, "/v1/chat/completions", sidecarChat, "X-Prefiller-Host-Port: "+address(prefill))
	if d := decode.State(); status != http.StatusOK || d.AggregatedDone != 1 {
		t.Errorf("%d %s\n%+v", status, answer, d)
	}
}

// A body that is no JSON object is refused in the sidecar's own shape of an error.
func TestSidecar_InvalidJSONIsItsOwnError(t *testing.T) {
	prefill, decode := sidecarPair(t, nil)
	status, answer, _ := throughSidecar(t, t.Context(), decode, "/v1/chat/completions", `{"messages":`, "X-Prefiller-Host-Port: "+address(prefill))
	var got sidecarError
	if err := json.Unmarshal([]byte(answer), &got); err != nil || status != http.StatusBadRequest || got.Code != status || got.Type != "BadRequestError" {
		t.Errorf("%d %s", status, answer)
	}
}

// The data-parallel header sends a request that came to the pod's first port to the rank of
// another one; an address that is none of the pod's is refused.
func TestSidecar_TheHeaderChoosesTheRank(t *testing.T) {
	prefill, _ := sidecarPair(t, nil)
	decode := start(t, func(cfg *Config) {
		cfg.Role, cfg.Connector, cfg.DataParallel, cfg.RankPorts = RoleDecode, ConnectorSidecar, 2, true
	})
	rank := "X-Data-Parallel-Host-Port: "
	for _, to := range []string{"", "X-Prefiller-Host-Port: " + address(prefill)} {
		status, answer, _ := throughSidecar(t, t.Context(), decode, "/v1/chat/completions", sidecarChat, to, rank+strings.TrimPrefix(decode.RankURL(1), "http://"))
		if status != http.StatusOK {
			t.Errorf("%d %s", status, answer)
		}
	}
	if first, second := decode.ranks[0].counts, decode.ranks[1].counts; first.decodes+first.aggregated != 0 || second.decodes != 1 || second.aggregated != 1 {
		t.Errorf("rank 0 %+v, rank 1 %+v", first, second)
	}
	if status, _, _ := throughSidecar(t, t.Context(), decode, "/v1/chat/completions", sidecarChat, rank+"127.0.0.1:1"); status != http.StatusBadRequest {
		t.Errorf("an unknown address: %d", status)
	}
}
