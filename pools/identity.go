package pools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
)

// Identity is what an engine says of itself. Its zero value: nothing.
type Identity struct {
	Engine      string `json:"engine,omitempty"` // vllm, sglang, trtllm; else what its models are owned by
	Version     string `json:"version,omitempty"`
	Connector   string `json:"connector,omitempty"`    // how it hands KV over; one of Connectors
	Role        Role   `json:"-"`                      // the only one that its mode allows; 0: any
	BlockTokens string `json:"block_tokens,omitempty"` // tokens of a KV block, as it writes them
	KVType      string `json:"kv_type,omitempty"`      // of the numbers in the KV, as it was set: auto, fp8_e5m2
	KVPort      int    `json:"kv_port,omitempty"`      // where other engines reach its KV; 0: not told
}

// IsSince reports whether the version, such as 0.32.1rc1+cu130, is of a release or later.
func (i Identity) IsSince(major, minor int) bool {
	parts := strings.SplitN(strings.TrimPrefix(i.Version, "v"), ".", 3)
	if len(parts) < 2 {
		return false
	}
	a, errA := strconv.Atoi(parts[0])
	b, errB := strconv.Atoi(parts[1])
	return errA == nil && errB == nil && (a > major || a == major && b >= minor)
}

// identity is an Identity with what is asked of it for each request.
type identity struct {
	Identity
	whole     bool   // every question was answered in this life of the server
	connector uint64 // class of the connector, where the configuration names none
	kv        uint64 // class of what else the KV depends on
}

func newIdentity(told Identity, whole bool) *identity {
	id := &identity{Identity: told, whole: whole, connector: class(cmp.Or(told.Connector, defaultConnector))}
	if told.Version+told.BlockTokens+told.KVType != "" {
		id.kv = class(told.Version, told.BlockTokens, told.KVType)
	}
	return id
}

// defaultConnector is that of a server of which neither the configuration nor the
// engine tells.
const defaultConnector = "nixl"

// Identity returns what the engine told of itself; of a server outside a fleet nothing.
func (l *live) Identity() Identity {
	if l == nil {
		return Identity{}
	}
	return l.told.Load().Identity
}

// Connector returns how decode obtains the KV: as configured, else as the engine tells.
func (s *Server) Connector() string { return s.connectorOf(s.Spec) }

func (l *live) connectorOf(spec Spec) string {
	return cmp.Or(spec.Connector, l.Identity().Connector, defaultConnector)
}

// identify asks the engine what it is, until it has answered everything in this life of
// the server. It is asked before the server takes its first request.
func (p *prober) identify(ctx context.Context, was Health, models []Model) {
	if was.Up && p.live.told.Load().whole {
		return
	}
	told, err := p.ask(ctx, models[0].Owner)
	p.live.told.Store(newIdentity(told, err == nil))
	if err != nil {
		return
	}
	if c := p.spec.Connector; c != "" && c != "aggregated" && told.Connector != "" && c != told.Connector {
		p.log.Warn("the engine tells of another connector than is configured", "configured", c, "engine", told.Connector)
	}
	if told.Role != 0 && told.Role != p.spec.Role {
		p.log.Warn("the engine tells of another role than is configured", "configured", p.spec.Role.String(), "engine", told.Role.String())
	}
}

// ask puts the questions that an engine of this kind answers. An error says that one
// went unanswered and may be answered yet.
func (p *prober) ask(ctx context.Context, owner string) (Identity, error) {
	switch owner {
	case "sglang":
		return p.askSGLang(ctx)
	case "tensorrt_llm":
		version, err := tell[versionPage](ctx, p, "/version")
		return Identity{Engine: "trtllm", Connector: "trtllm", Version: version.Version}, err
	}
	return p.askVLLM(ctx, Identity{Engine: owner})
}

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
}

func (p *prober) askSGLang(ctx context.Context) (Identity, error) {
	args, err := tell[sglangArgs](ctx, p, "/server_info")
	if err == nil && args.Mode == "" {
		args, err = tell[sglangArgs](ctx, p, "/get_server_info") // as it was called before
	}
	told := Identity{Engine: "sglang", Version: args.Version, KVType: args.KVType, KVPort: args.BootstrapPort}
	if args.PageSize > 0 {
		told.BlockTokens = strconv.Itoa(args.PageSize)
	}
	switch args.Mode {
	case "prefill":
		told.Connector, told.Role = "sglang", Prefill
	case "decode":
		told.Connector, told.Role = "sglang", Decode
	case "null":
		told.Connector = "aggregated"
	}
	return told, err
}

// vllmInfo is what a vLLM tells in its development mode
// (vllm/entrypoints/serve/instrumentator/server_info.py).
type vllmInfo struct {
	Config *struct {
		Transfer *vllmTransfer `json:"kv_transfer_config"`
	} `json:"vllm_config"`
}

// askVLLM reads version and KV cache, which every vLLM tells, and its connector where
// the configuration names none.
func (p *prober) askVLLM(ctx context.Context, told Identity) (Identity, error) {
	version, err := tell[versionPage](ctx, p, "/version")
	told.Version = version.Version
	exposition := p.spec.Metrics
	if exposition == "" {
		exposition = p.spec.URL + metricsPath
	}
	if text, failed := p.get(ctx, exposition); failed == nil {
		told.BlockTokens, told.KVType = cacheConfig(text)
	} else if !absent(failed) {
		err = errors.Join(err, failed)
	}
	if p.spec.Connector != "" {
		return told, err
	}
	info, failed := tell[vllmInfo](ctx, p, "/server_info?config_format=json")
	if info.Config != nil {
		told.Connector = info.Config.Transfer.connector()
	}
	return told, errors.Join(err, failed)
}

// cacheSeries is vLLM's: its labels are the configuration of the KV cache.
const cacheSeries = "vllm:cache_config_info"

// cacheConfig returns tokens of a block and type of the numbers, empty if not there.
func cacheConfig(exposition []byte) (blockTokens, kvType string) {
	families, err := parseExposition(exposition)
	if err != nil {
		return "", "" // the scrape tells that they cannot be read
	}
	for _, m := range family(families, cacheSeries).GetMetric() {
		return label(m, "block_size"), label(m, "cache_dtype")
	}
	return "", ""
}

// vllmTransfer is vLLM's --kv-transfer-config.
type vllmTransfer struct {
	Name  string `json:"kv_connector"`
	Extra struct {
		Connectors []vllmTransfer `json:"connectors"` // of a MultiConnector
	} `json:"kv_connector_extra_config"`
}

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
	// These keep KV on the engine's own machine. Of a P2P tier, which connector offload
	// wants, nothing is told: it has to be configured.
	"OffloadingConnector":       "aggregated",
	"SimpleCPUOffloadConnector": "aggregated",
}

// connector returns our name, aggregated without any, and nothing for one that we do
// not know. Of several the first that hands KV over counts, as the first that can load
// does in the engine.
func (t *vllmTransfer) connector() string {
	if t == nil || t.Name == "" {
		return "aggregated"
	}
	for i := range t.Extra.Connectors {
		if name := t.Extra.Connectors[i].connector(); name != "" && name != "aggregated" {
			return name
		}
	}
	return vllmConnectors[t.Name]
}

// tell returns the JSON that the engine has at a path. Having none there, or something
// else, is an answer too, and its zero value.
func tell[T any](ctx context.Context, p *prober, path string) (told T, err error) {
	body, err := p.get(ctx, p.spec.URL+path)
	switch {
	case absent(err):
		return told, nil
	case err != nil:
		return told, err
	}
	if read := *new(T); json.Unmarshal(body, &read) == nil {
		told = read
	}
	return told, nil
}

// absent reports an engine that has nothing at the address that was asked.
func absent(err error) bool {
	var status statusError
	return errors.As(err, &status) && status.code >= http.StatusBadRequest && status.code < http.StatusInternalServerError
}
