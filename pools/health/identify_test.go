package health

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

const vllmModels = `{"data":[{"id":"m","owned_by":"vllm"}]}`

func TestProbe_WhatEnginesReportOfThemselves(t *testing.T) {
	vllm := func(transfer string) map[string]string {
		return map[string]string{
			"/v1/models": vllmModels, "/version": `{"version":"0.31.0"}`,
			"/server_info": fmt.Sprintf(`{"vllm_config":{"kv_transfer_config":%s}}`, transfer),
		}
	}
	for _, c := range []struct {
		name  string
		pages map[string]string
		want  pools.Identity
	}{
		{"nothing", map[string]string{"/v1/models": `{"data":[{"id":"m"}]}`}, pools.Identity{}},
		{"pages that are none", map[string]string{"/v1/models": vllmModels, "/version": "<html>", "/metrics": "<html>", "/server_info": "[]"}, pools.Identity{Engine: "vllm"}},
		{"KV cache", map[string]string{"/v1/models": vllmModels, "/metrics": `vllm:cache_config_info{block_size="32",cache_dtype="fp8"} 1` + "\n"},
			pools.Identity{Engine: "vllm", BlockTokens: "32", KVType: "fp8"}},
		{"a configuration as text, of an older vLLM", map[string]string{"/v1/models": vllmModels, "/server_info": `{"vllm_config":"model='m'"}`}, pools.Identity{Engine: "vllm"}},
		{"names that would write to a terminal", map[string]string{
			"/v1/models": `{"data":[{"id":"m","owned_by":"vl\u001b[2Jlm"},{"id":"\u001b[2Jn","owned_by":"vllm"},{"id":"lora","parent":"m\u0007"}]}`,
			"/version":   `{"version":"0.31.0\u001b]0;title\u0007"}`, "/metrics": "vllm:cache_config_info{block_size=\"16\u202e\",cache_dtype=\"auto\\n\"} 1\n",
		}, pools.Identity{Engine: "vl[2Jlm", Version: "0.31.0]0;title", BlockTokens: "16", KVType: "auto"}},
		{"vLLM's Rust frontend", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"vllm-frontend-rs"}]}`, "/version": `{"version":"0.32.0","rust_frontend_version":"0.32.0"}`},
			pools.Identity{Engine: "vllm", Version: "0.32.0"}},
		{"no connector", vllm(`null`), pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "aggregated"}},
		{"one", vllm(`{"kv_connector":"MooncakeConnector"}`), pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "mooncake"}},
		{"an unknown one", vllm(`{"kv_connector":"MoRIIOConnector"}`), pools.Identity{Engine: "vllm", Version: "0.31.0"}},
		{"several, the first of which hands nothing over", vllm(`{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"OffloadingConnector"},{"kv_connector":"NixlConnector"}]}}`),
			pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "nixl"}},
		{"a store before a hand-off", vllm(`{"kv_connector":"PdConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"LMCacheConnectorV1"},{"kv_connector":"NixlConnector"}]}}`),
			pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "nixl"}},
		{"a store alone among several", vllm(`{"kv_connector":"MultiConnector","kv_connector_extra_config":{"connectors":[{"kv_connector":"LMCacheMPConnector"},{"kv_connector":"OffloadingConnector"}]}}`),
			pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "store"}},
		{"a store of LMCache's own", vllm(`{"kv_connector":"LMCacheConnectorV1Dynamic","kv_connector_module_path":"lmcache.integration.vllm.lmcache_connector_v1"}`),
			pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "store"}},
		{"a file system that all share", vllm(`{"kv_connector":"HF3FSKVConnector"}`), pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "store"}},
		{"FlexKV", vllm(`{"kv_connector":"FlexKVConnectorV1"}`), pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "aggregated"}},
		{"one that keeps answers' KV", vllm(`{"kv_connector":"NixlConnector","kv_connector_extra_config":{"bidirectional_kv_xfer":true}}`),
			pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "nixl", KeepsAnswers: true}},
		{"one that keeps none", vllm(`{"kv_connector":"NixlConnector","kv_connector_extra_config":{"bidirectional_kv_xfer":"false"}}`),
			pools.Identity{Engine: "vllm", Version: "0.31.0", Connector: "nixl"}},
		{"SGLang under its old path", map[string]string{
			"/v1/models":       `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/get_server_info": `{"version":"0.5.9","disaggregation_mode":"decode","disaggregation_bootstrap_port":9001,"page_size":1,"kv_cache_dtype":"auto"}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.9", Connector: "sglang", Role: pools.Decode, BlockTokens: "1", KVType: "auto", KVPort: 9001}},
		{"SGLang that can switch its role", map[string]string{
			"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/server_info": `{"version":"0.5.23","disaggregation_mode":"prefill","enable_pd_role_switch":true,"page_size":64}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.23", Connector: "sglang", Role: pools.Prefill, BlockTokens: "64", SwitchesRole: true}},
		{"SGLang that has no role to switch", map[string]string{
			"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/server_info": `{"version":"0.5.23","disaggregation_mode":"null","enable_pd_role_switch":true}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.23", Connector: "aggregated"}},
		{"SGLang, bytes of its KV", map[string]string{
			"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/server_info": `{"version":"0.5.23","disaggregation_mode":"null","tp_size":4,"dp_size":1,"pp_size":2,"internal_states":[{"memory_usage":{"weight":9.1,"kvcache":2.5,"token_capacity":20480}}]}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.23", Connector: "aggregated", TokenBytes: 8 << 17}},
		{"SGLang, ranks that share the attention of a group", map[string]string{
			"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/server_info": `{"version":"0.5.23","disaggregation_mode":"null","tp_size":8,"dp_size":8,"pp_size":1,"enable_dp_attention":true,"internal_states":[{"memory_usage":{"kvcache":2.5,"token_capacity":20480}},{}]}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.23", Connector: "aggregated", TokenBytes: 1 << 17}},
		{"SGLang, KV too small for its decimals", map[string]string{
			"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/server_info": `{"version":"0.5.23","disaggregation_mode":"null","internal_states":[{"memory_usage":{"kvcache":0.004,"token_capacity":32}}]}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.23", Connector: "aggregated"}},
		{"SGLang, KV beyond all numbers", map[string]string{
			"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
			"/server_info": `{"version":"0.5.23","disaggregation_mode":"null","internal_states":[{"memory_usage":{"kvcache":1e300,"token_capacity":1e-300}}]}`,
		}, pools.Identity{Engine: "sglang", Version: "0.5.23", Connector: "aggregated"}},
		{"TensorRT-LLM", map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"tensorrt_llm"}]}`, "/version": `{"version":"1.2.0"}`},
			pools.Identity{Engine: "trtllm", Version: "1.2.0", Connector: "trtllm"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pages["/health"] = "ok"
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				page, there := c.pages[r.URL.Path]
				if !there {
					http.NotFound(w, r)
				}
				_, _ = w.Write([]byte(page))
			}))
			defer server.Close()
			probed, err := Probe(t.Context(), pools.Spec{URL: server.URL, Role: pools.Both}, pools.Default(), server.Client().Transport, slog.New(slog.DiscardHandler))
			if err != nil || probed.Identity() != c.want {
				t.Errorf("%+v, %v; want %+v", probed.Identity(), err, c.want)
			}
		})
	}
}

// 1 the engine is up and its configuration takes too long; 2 until it has answered, it is
// asked at each probe; 3 what it has answered is not asked again.
func TestProber_AsksUntilTheEngineHasAnswered(t *testing.T) {
	asked, fails := 0, true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = w.Write([]byte(vllmModels))
		case "/server_info":
			if asked++; fails {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = w.Write([]byte(`{"vllm_config":{"kv_transfer_config":{"kv_connector":"P2pNcclConnector"}}}`))
		}
	}))
	defer server.Close()
	spec := pools.Spec{URL: server.URL, Role: pools.Both}
	s := pools.NewServer(spec)
	p := newProber(engine{server: s, transport: server.Client().Transport}, newSlowHealth(), pools.Default(), load.NewPages(nil), slog.New(slog.DiscardHandler))
	for i, want := range []struct {
		connector string
		asked     int
	}{{"nixl", 1}, {"nixl", 2}, {"p2p-nccl", 3}, {"p2p-nccl", 3}} {
		fails = i < 2
		p.probe(t.Context())
		if got := s.Connector(); got != want.connector || asked != want.asked || !s.Health().Up {
			t.Errorf("probe %d: %s, asked %d times, up %v", i, got, asked, s.Health().Up)
		}
	}
}
