package health

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/load"
)

// identify asks the engine what it is, until it has answered everything in this life of
// the server. It is asked before the server takes its first request.
func (e engine) identify(ctx context.Context, wasUp bool, models []pools.Model, log *slog.Logger) {
	if wasUp && e.server.Identified() {
		return
	}
	reported, err := e.identity(ctx, models[0].Owner)
	for _, text := range []*string{&reported.Engine, &reported.Version, &reported.BlockTokens, &reported.KVType} {
		*text = printable(*text)
	}
	e.server.SetIdentity(reported, err == nil)
	if err != nil {
		return
	}
	if c := e.server.Spec.Connector; c != "" && c != "aggregated" && reported.Connector != "" && c != reported.Connector {
		log.Warn("the engine reports another connector than is configured", "configured", c, "engine", reported.Connector)
	}
	if reported.Role != 0 && reported.Role != e.server.Role {
		log.Warn("the engine reports another role than is configured", "configured", e.server.Role.String(), "engine", reported.Role.String())
	}
}

// identity puts the questions that an engine of this kind answers. An error means that one
// went unanswered and may be answered yet.
func (e engine) identity(ctx context.Context, owner string) (pools.Identity, error) {
	switch owner {
	case "sglang":
		return e.sglangIdentity(ctx)
	case "tensorrt_llm":
		version, err := page[versionPage](ctx, e, "/version")
		return pools.Identity{Engine: "trtllm", Connector: "trtllm", Version: version.Version}, err
	}
	if owner == vllmRust {
		owner = "vllm"
	}
	return e.vllmIdentity(ctx, pools.Identity{Engine: owner})
}

// vllmRust is what vLLM's Rust frontend calls itself (vLLM 0.32, rust/src/server/src/routes/openai/models.rs). Its
// requests and pages are those of vLLM, and so is the version that it reports.
const vllmRust = "vllm-frontend-rs"

// versionPage is /version of vLLM and TensorRT-LLM.
type versionPage struct {
	Version string `json:"version"`
}

// sglangArgs are what we read of SGLang's arguments (sglang/srt/entrypoints/
// http_server.py, server_info). They hold its keys: nothing else is kept, or ever logged.
type sglangArgs struct {
	Version       string `json:"version"`
	Mode          string `json:"disaggregation_mode"` // null (a text), prefill or decode
	BootstrapPort int    `json:"disaggregation_bootstrap_port"`
	PageSize      int    `json:"page_size"`
	KVType        string `json:"kv_cache_dtype"`
	// RoleSwitch: POST /pd_role_switch may change the mode while the engine is idle (0.5.23,
	// srt/disaggregation/role_switch.py). Mode stays what it was at the start (srt/utils/common.py,
	// build_server_info).
	RoleSwitch bool `json:"enable_pd_role_switch"`

	Tensor      int  `json:"tp_size"`
	Pipeline    int  `json:"pp_size"`
	Data        int  `json:"dp_size"`
	AttentionDP bool `json:"enable_dp_attention"` // the data-parallel ranks are parts of the tensor-parallel group
	RankStates  []struct {
		Memory struct {
			KV     float64 `json:"kvcache"` // GiB of one rank, with three decimals
			Tokens float64 `json:"token_capacity"`
		} `json:"memory_usage"`
	} `json:"internal_states"`

	Publisher *sglangPublisher `json:"kv_events"`
}

// leastKV is how much of a rank's memory its KV has to be, in GiB, for its three decimals to say how much a token
// has of it.
const leastKV = 0.1

// mostTokenBytes is more KV than a token of any model has, in bytes: what says more is wrong, up to infinity, which no
// page of the admin port could write.
const mostTokenBytes = 1 << 30

// tokenBytes is the bytes of KV of a token on all ranks that hold a part of it, or a copy as with latent
// attention: what crosses a link, as each sends its own (srt/managers/scheduler_components/memory_usage.py 0.5.23).
// 0: not reported.
func (a *sglangArgs) tokenBytes() float64 {
	if len(a.RankStates) == 0 {
		return 0
	}
	m, ranks := a.RankStates[0].Memory, max(1, a.Tensor)*max(1, a.Pipeline)
	if m.KV < leastKV || m.Tokens <= 0 {
		return 0
	}
	if a.AttentionDP {
		ranks = max(1, ranks/max(1, a.Data))
	}
	if each := m.KV * (1 << 30) / m.Tokens * float64(ranks); each <= mostTokenBytes {
		return each
	}
	return 0
}

// sglangPublisher is where an SGLang since 0.5.23 says that it publishes (sglang/srt/runtime_context.py,
// describe_kv_events_publisher). The host that it names is where it binds, mostly a wildcard.
type sglangPublisher struct {
	Publisher  string `json:"publisher"` // zmq
	EventsPort int    `json:"endpoint_port_base"`
	ReplayPort int    `json:"replay_endpoint_port_base"`
	LoadPort   int    `json:"load_endpoint_port_base"`
	Topic      string `json:"topic"`
	LoadTopic  string `json:"load_topic"`
	Ranks      int    `json:"dp_size"`
}

func (p *sglangPublisher) ports() pools.Publisher {
	if p == nil || p.Publisher != "zmq" {
		return pools.Publisher{}
	}
	return pools.Publisher{
		EventsPort: p.EventsPort, ReplayPort: p.ReplayPort, LoadPort: p.LoadPort,
		Topic: p.Topic, LoadTopic: p.LoadTopic, Ranks: p.Ranks,
	}
}

func (e engine) sglangIdentity(ctx context.Context) (pools.Identity, error) {
	args, err := page[sglangArgs](ctx, e, "/server_info")
	if err == nil && args.Mode == "" {
		args, err = page[sglangArgs](ctx, e, "/get_server_info") // as it was called before
	}
	reported := pools.Identity{Engine: "sglang", Version: args.Version, KVType: args.KVType, KVPort: args.BootstrapPort, TokenBytes: args.tokenBytes(), Publisher: args.Publisher.ports()}
	if args.PageSize > 0 {
		reported.BlockTokens = strconv.Itoa(args.PageSize)
	}
	reported.SwitchesRole = args.RoleSwitch && (args.Mode == "prefill" || args.Mode == "decode")
	switch args.Mode {
	case "prefill":
		reported.Connector, reported.Role = "sglang", pools.Prefill
	case "decode":
		reported.Connector, reported.Role = "sglang", pools.Decode
	case "null":
		reported.Connector = "aggregated"
	}
	return reported, err
}

// vllmInfo is what a vLLM reports in its development mode
// (vllm/entrypoints/serve/instrumentator/server_info.py).
type vllmInfo struct {
	Config *struct {
		Transfer *vllmTransfer `json:"kv_transfer_config"`
	} `json:"vllm_config"`
}

// vllmIdentity reads version, KV cache and where it publishes, which every vLLM reports, and its connector where
// the configuration names none.
func (e engine) vllmIdentity(ctx context.Context, reported pools.Identity) (pools.Identity, error) {
	version, err := page[versionPage](ctx, e, "/version")
	reported.Version = version.Version
	if text, failed := e.get(ctx, cmp.Or(e.server.Metrics, load.MetricsPath)); failed == nil {
		reported.BlockTokens, reported.KVType = load.ParseKVCache(text)
	} else if !absent(failed) {
		err = errors.Join(err, failed)
	}
	publisher, failed := e.eventSources(ctx)
	reported.Publisher, err = publisher, errors.Join(err, failed)
	if e.server.Spec.Connector != "" {
		return reported, err
	}
	info, failed := page[vllmInfo](ctx, e, "/server_info?config_format=json")
	if info.Config != nil {
		reported.Connector = info.Config.Transfer.connector()
		reported.KeepsAnswers = reported.Connector == "nixl" && info.Config.Transfer.keepsAnswers()
	}
	return reported, errors.Join(err, failed)
}

// vllmTransfer is vLLM's --kv-transfer-config.
type vllmTransfer struct {
	Name  string `json:"kv_connector"`
	Extra struct {
		Connectors    []vllmTransfer `json:"connectors"` // of a MultiConnector
		Bidirectional any            `json:"bidirectional_kv_xfer"`
	} `json:"kv_connector_extra_config"`
}

// keepsAnswers reports NIXL's bidirectional_kv_xfer (vLLM 0.33, nixl/base_scheduler.py). Of a
// MultiConnector it is not asked: what its other connectors make of such a prefill leg was not read.
func (t *vllmTransfer) keepsAnswers() bool { return t != nil && t.Extra.Bidirectional == true }

// vllmConnectors are our names of vLLM's connectors (vllm/distributed/kv_transfer/
// kv_connector/factory.py).
var vllmConnectors = map[string]string{
	"NixlConnector":          "nixl",
	"NixlPullConnector":      "nixl",
	"NixlPushConnector":      "nixl",
	"MooncakeConnector":      "mooncake",
	"P2pNcclConnector":       "p2p-nccl",
	"LMCacheConnectorV1":     "store",
	"LMCacheMPConnector":     "store",
	"SharedStorageConnector": "store",
	"ExampleConnector":       "store",
	"MooncakeStoreConnector": "store",
	"HF3FSKVConnector":       "store",
	// These come with LMCache and Dynamo's KVBM, by kv_connector_module_path.
	"LMCacheConnectorV1Dynamic": "store",
	"DynamoConnector":           "aggregated",
	// These keep KV on the engine's own machine. Of a P2P tier, which connector offload
	// wants, and of machines that share what FlexKV keeps nothing is reported: it has to
	// be configured.
	"OffloadingConnector":       "aggregated",
	"SimpleCPUOffloadConnector": "aggregated",
	"FlexKVConnectorV1":         "aggregated",
	"HiSparseConnector":         "aggregated",
}

// connector returns our name, aggregated without any, and nothing for one that we do
// not know. Of several the first that has a hand-off counts, whatever stands before it:
// all connectors of a MultiConnector see it, and the one that it is for loads by it
// (0.32, kv_connector/v1/multi_connector.py). A store beside it, as in front of NIXL in
// prefill servers with LMCache, is one more cache.
func (t *vllmTransfer) connector() string {
	if t == nil || t.Name == "" {
		return "aggregated"
	}
	best := vllmConnectors[t.Name]
	for i := range t.Extra.Connectors {
		switch name := t.Extra.Connectors[i].connector(); name {
		case "", "aggregated":
		case "store":
			best = name
		default:
			return name
		}
	}
	return best
}
