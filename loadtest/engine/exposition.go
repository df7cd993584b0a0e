package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Expositions: the names under which an engine reports its load, and where.
const (
	ExpositionVLLM      = "vllm"
	ExpositionVLLMOld   = "vllm-old" // to 0.10: another name for the use of the KV cache
	ExpositionSGLang    = "sglang"
	ExpositionSGLangOld = "sglang-old" // without /v1/loads
	ExpositionTRTLLM    = "trtllm"
	ExpositionTriton    = "triton" // with its TensorRT-LLM backend
)

// Expositions lists them all.
func Expositions() []string {
	return []string{ExpositionVLLM, ExpositionVLLMOld, ExpositionSGLang, ExpositionSGLangOld, ExpositionTRTLLM, ExpositionTriton}
}

// exposition is the configured one, else that of the connector's engine.
func (c *Config) exposition() string {
	switch {
	case c.Exposition != "":
		return c.Exposition
	case c.Connector == ConnectorSGLang:
		return ExpositionSGLang
	case c.Connector == ConnectorTRTLLM:
		return ExpositionTRTLLM
	}
	return ExpositionVLLM
}

// namedGauge is one gauge of a rank, by the name that an engine gives it.
type namedGauge struct {
	name   string
	labels prometheus.Labels
	read   func(rankLoad) float64
}

// gaugesOf are the gauges of engines other than vLLM (sglang/srt/metrics/collector.py;
// for TensorRT-LLM and Triton the table of the Gateway API Inference Extension's
// model-server protocol).
func gaugesOf(exposition string) []namedGauge {
	running := func(l rankLoad) float64 { return float64(l.running) }
	waiting := func(l rankLoad) float64 { return float64(l.waiting + l.loading) }
	share := func(l rankLoad) float64 { return l.kvShare }
	usedTokens := func(l rankLoad) float64 { return float64(l.usedBlocks * l.blockSize) }
	tokens := func(l rankLoad) float64 { return float64(l.blocks * l.blockSize) }
	blocks := func(l rankLoad) float64 { return float64(l.blocks) }
	blockSize := func(l rankLoad) float64 { return float64(l.blockSize) }
	switch exposition {
	case ExpositionVLLMOld:
		return []namedGauge{
			{"vllm:num_requests_running", nil, running}, {"vllm:num_requests_waiting", nil, waiting},
			{"vllm:gpu_cache_usage_perc", nil, share},
		}
	case ExpositionSGLang, ExpositionSGLangOld:
		return []namedGauge{
			{"sglang:num_running_reqs", nil, running}, {"sglang:num_queue_reqs", nil, waiting},
			{"sglang:token_usage", nil, share}, {"sglang:num_used_tokens", nil, usedTokens},
			{"sglang:max_total_num_tokens", nil, tokens}, {"sglang:page_size", nil, blockSize},
		}
	case ExpositionTRTLLM:
		return []namedGauge{
			{"trtllm_num_requests_running", nil, running}, {"trtllm_num_requests_waiting", nil, waiting},
			{"trtllm_kv_cache_utilization", nil, share}, {"trtllm_kv_cache_tokens_per_block", nil, blockSize},
			{"trtllm_kv_cache_max_blocks", nil, blocks},
		}
	case ExpositionTriton:
		const requests, cache = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
		return []namedGauge{
			{requests, prometheus.Labels{"request_type": "scheduled"}, running},
			{requests, prometheus.Labels{"request_type": "waiting"}, waiting},
			{cache, prometheus.Labels{"kv_cache_block_type": "fraction"}, share},
			{cache, prometheus.Labels{"kv_cache_block_type": "tokens_per"}, blockSize},
			{cache, prometheus.Labels{"kv_cache_block_type": "max"}, blocks},
		}
	}
	return nil
}

// observers each observe what is observed.
type observers []prometheus.Observer

func (o observers) Observe(v float64) {
	for _, each := range o {
		each.Observe(v)
	}
}

// expose registers the gauges of a rank under the names of another engine than vLLM, and what TensorRT-LLM's prefills
// took (tensorrt_llm/metrics/collector.py, histogram_prefill_time_request).
func expose(registry *prometheus.Registry, exposition string, r *rank) {
	labels := prometheus.Labels{"model_name": r.cfg.Model}
	switch exposition {
	case ExpositionSGLang, ExpositionSGLangOld:
		labels["dp_rank"], labels["tp_rank"] = strconv.Itoa(r.index), "0"
	case ExpositionVLLMOld:
		labels["engine"] = strconv.Itoa(r.index)
	}
	if exposition == ExpositionTRTLLM {
		prefill := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "trtllm_request_prefill_time_seconds", Help: "First batch to first token.", ConstLabels: labels, Buckets: secondsBuckets,
		})
		registry.MustRegister(prefill)
		r.meters.prefill = observers{prefill, r.meters.prefill} // the last is what makes the page be written anew
	}
	for _, s := range gaugesOf(exposition) {
		registry.MustRegister(prometheus.NewGaugeFunc( // the registry is new
			prometheus.GaugeOpts{Name: s.name, Help: "As the engine of this name has it.", ConstLabels: withLabels(labels, s.labels)},
			func() float64 { return s.read(r.shown) }))
	}
}

// sglangRankLoad is an entry of SGLang's /v1/loads.
type sglangRankLoad struct {
	Rank          int     `json:"dp_rank"`
	Running       int     `json:"num_running_reqs"`
	Waiting       int     `json:"num_waiting_reqs"`
	WaitingTokens int     `json:"num_waiting_uncached_tokens"`
	UsedTokens    int     `json:"num_used_tokens"`
	MaxTokens     int     `json:"max_total_num_tokens"`
	TokenUsage    float64 `json:"token_usage"`
}

func (e *Engine) loads(x *exchange) error {
	loads := []sglangRankLoad{}
	for _, r := range e.ranks {
		if l := r.load(); x.rank < 0 || x.rank == r.index {
			loads = append(loads, sglangRankLoad{
				Rank: r.index, Running: l.running, Waiting: l.waiting + l.loading, WaitingTokens: l.waitingTokens,
				UsedTokens: l.usedBlocks * l.blockSize, MaxTokens: l.blocks * l.blockSize, TokenUsage: l.kvShare,
			})
		}
	}
	writeJSON(x.w, http.StatusOK, map[string]any{"version": e.cfg.Version, "loads": loads})
	return nil
}

// serverInfo answers as SGLang does, with the server's arguments; as vLLM in its
// development mode; or as TensorRT-LLM, that has little to say.
func (e *Engine) serverInfo(x *exchange) error {
	switch e.cfg.Connector {
	case ConnectorSGLang:
		mode := e.cfg.Role
		if mode == RoleBoth {
			mode = "null"
		}
		writeJSON(x.w, http.StatusOK, map[string]any{
			"version": e.cfg.Version, "disaggregation_mode": mode, "disaggregation_bootstrap_port": e.ranks[0].side.port,
			"page_size": e.cfg.BlockSize, "kv_cache_dtype": e.cfg.KVType, "dp_size": len(e.ranks), "api_key": e.cfg.APIKey,
			"kv_events": e.kvEvents(),
		})
		return nil
	case ConnectorTRTLLM:
		writeJSON(x.w, http.StatusOK, map[string]any{"disaggregated_params": map[string]any{}})
		return nil
	}
	transfer := vllmTransfers[e.cfg.Connector]
	if e.cfg.KeepAnswers {
		transfer = map[string]any{"kv_connector": "NixlConnector", "kv_connector_extra_config": map[string]any{"bidirectional_kv_xfer": true}}
	}
	config := map[string]any{
		"cache_config":       map[string]any{"block_size": e.cfg.BlockSize, "cache_dtype": e.cfg.KVType},
		"kv_transfer_config": transfer,
	}
	var shown any = config
	if x.r.URL.Query().Get("config_format") != "json" {
		text, err := json.Marshal(config)
		if err != nil {
			return err
		}
		shown = string(text)
	}
	writeJSON(x.w, http.StatusOK, map[string]any{"vllm_config": shown})
	return nil
}

// kvEventSource is what a rank of vLLM says of where it publishes (vllm/config/kv_events.py, 0.32).
type kvEventSource struct {
	Enabled   bool    `json:"enable_kv_cache_events"`
	Publisher string  `json:"publisher"`
	Endpoint  string  `json:"endpoint"`
	Replay    *string `json:"replay_endpoint"`
	Kept      int     `json:"buffer_steps"`
	Topic     string  `json:"topic"`
}

// kvEventSources answers as vLLM since 0.32, by rank, with nothing where it publishes none
// (vllm/entrypoints/serve/instrumentator/basic.py).
func (e *Engine) kvEventSources(x *exchange) error {
	if !e.isVLLM(32) {
		return errNoRoute
	}
	sources := make(map[string]kvEventSource)
	for _, r := range e.ranks {
		if r.events == nil {
			continue
		}
		said := kvEventSource{Enabled: true, Publisher: "zmq", Endpoint: r.events.eventsAt, Kept: e.cfg.ReplayBatches, Topic: e.cfg.EventsTopic}
		if binds(e.cfg.EventsEndpoint) {
			said.Endpoint = fmt.Sprintf("tcp://*:%d", portOf(r.events.eventsAt))
		}
		if at := r.events.replayAt; at != "" {
			at = fmt.Sprintf("tcp://*:%d", portOf(at))
			said.Replay = &at
		}
		sources[strconv.Itoa(r.index)] = said
	}
	writeJSON(x.w, http.StatusOK, sources)
	return nil
}

// vllmTransfers are the settings by which a vLLM gets a connector.
var vllmTransfers = map[string]map[string]any{
	ConnectorNIXL:     {"kv_connector": "NixlConnector"},
	ConnectorNIXLPush: {"kv_connector": "NixlPushConnector"},
	ConnectorMooncake: {"kv_connector": "MooncakeConnector"},
	ConnectorP2PNCCL:  {"kv_connector": "P2pNcclConnector"},
	ConnectorOffload:  {"kv_connector": "OffloadingConnector"},
	ConnectorSidecar:  {"kv_connector": "NixlConnector"},
	ConnectorStore: {"kv_connector": "MultiConnector", "kv_connector_extra_config": map[string]any{
		"connectors": []any{map[string]any{"kv_connector": "OffloadingConnector"}, map[string]any{"kv_connector": "LMCacheConnectorV1"}},
	}},
}
