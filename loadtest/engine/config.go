package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Roles of an engine. They are names for the reader of its state: as in vLLM with
// NIXL, any engine can prefill, decode, or do both.
const (
	RolePrefill = "prefill"
	RoleDecode  = "decode"
	RoleBoth    = "both"
)

// What a decode does when its hand-off cannot be used (vLLM kv_load_failure_policy).
const (
	LoadFailureRecompute = "recompute" // compute the prompt here
	LoadFailureFail      = "fail"      // end the request with an internal error
)

// Config of one simulated engine. Default gives one that runs.
type Config struct {
	// Listen is the address of the API; port 0 takes any free one.
	Listen string
	// Control is a second address for /sim/ that stays up while faults close the
	// first. Empty: none.
	Control string
	// SideChannel is the address from which decodes pull KV. Empty: any free port
	// on the host of Listen. AdvertiseHost is the host that hand-offs name; empty:
	// the host of SideChannel.
	SideChannel   string
	AdvertiseHost string

	Role string
	// Model is the name served. Engines with the same model give the same answers.
	Model string
	// HandoffKey is what a hand-off of TensorRT-LLM must be signed with (its internal_request_auth_key); empty: none
	// need be.
	HandoffKey string
	// APIKey is what requests to /v1/ must bear; empty: none (vLLM --api-key).
	APIKey string
	// Weights is a version of the model's weights: others answer otherwise, and their KV
	// is another's. Version is the engine's own.
	Weights string
	Version string
	// Adapters are LoRA adapters loaded at start; MaxAdapters is how many may be in
	// one batch.
	Adapters    []string
	MaxAdapters int
	// AdapterLoad is how long loading one takes, in simulated time.
	AdapterLoad time.Duration
	// DataParallel is the number of ranks behind the address, each with its own KV
	// cache, scheduler and event socket.
	DataParallel int

	// RankPorts gives each rank an address of its own: the ports after that of Listen,
	// or any free ones. Lockstep makes the ranks step together.
	RankPorts bool
	Lockstep  bool

	// TimeScale multiplies every simulated duration: 1 is real time, 0.01 is a
	// hundred times faster, 0 waits for nothing.
	TimeScale float64
	// StepBase is what every step takes beside what the formulas say of the work in it, in simulated
	// time: some 300 ms on a CPU (measured with vLLM 0.32 on two cores), 50 ms and more with
	// experts spread over many hosts (DeepSeek-V3/R1 Inference System Overview, 2025: 20 to 22
	// tokens a second for each stream). The 16 ms of a dense model are in the formulas.
	StepBase time.Duration
	// BlockSize is in tokens, Blocks is the size of each rank's KV cache in blocks,
	// MaxModelLen is the longest prompt plus answer in tokens.
	BlockSize   int
	Blocks      int
	MaxModelLen int
	// NoPrefixCaching finds no prompt's beginning in the cache (--no-enable-prefix-caching).
	NoPrefixCaching bool
	// KVType is that of the KV's numbers, as it is set (--kv-cache-dtype).
	KVType string
	// MaxSeqs and MaxBatchedTokens bound one step of the scheduler.
	MaxSeqs          int
	MaxBatchedTokens int
	// PriorityScheduling serves requests by their priority field, in the order of the connector's engine.
	PriorityScheduling bool
	// MeanOutputTokens is the mean length of an answer that ends by itself, beyond the
	// MinOutputTokens that every answer of free text has.
	MeanOutputTokens int
	MinOutputTokens  int

	// EventsEndpoint is where KV events are published: bound if it names a wildcard,
	// else connected to. ReplayEndpoint serves missed batches. Rank r of a tcp
	// endpoint uses port + r. Empty: off.
	EventsEndpoint string
	ReplayEndpoint string
	EventsTopic    string
	// LoadEndpoint is where SGLang pushes each rank's load (--load-publish-endpoint), bound.
	// Empty: off.
	LoadEndpoint string
	// EventsAsMaps publishes events as maps (newer vLLM), else as arrays.
	EventsAsMaps bool
	// ReplayBatches is how many batches can be replayed.
	ReplayBatches int
	// HashSeed is the text that seeds block hashes (vLLM PYTHONHASHSEED). Empty: a
	// random one, so that no two engines agree on the hash of a block.
	HashSeed string

	// LinkBytesPerSecond is the speed of the engine's network link, shared by its
	// concurrent transfers; LinkLatency is added to each transfer.
	LinkBytesPerSecond float64
	LinkLatency        time.Duration
	// Rack is where the engine stands. KV that leaves for another known rack goes over
	// its uplink, of UplinkBytesPerSecond, instead; with 0 racks make no difference.
	Rack                 string
	UplinkBytesPerSecond float64
	KVBytesPerToken      int
	// Lease is how long the blocks of a finished prefill are held for a decode that
	// gives no sign of life, in real time.
	Lease time.Duration
	// LoadFailure is recompute or fail.
	LoadFailure string
	// KeepAnswers (bidirectional_kv_xfer, connector nixl) holds the KV of each answer that began
	// with a hand-off for AnswerLife, in real time (decoder_kv_blocks_ttl), for the next turn's
	// prefill, and lets prefill fetch such KV.
	KeepAnswers bool
	AnswerLife  time.Duration

	// Connector is how KV gets from a prefill to a decode engine. With those whose legs
	// meet, the side channel is prefill's bootstrap server.
	Connector string
	// MeetTimeout is how long a leg waits for the other one, in real time.
	MeetTimeout time.Duration
	// Store is the side channel of the engine that is the KV store, "host:port"; empty:
	// this one's own.
	Store string
	// DecodeReuse: a decode leg keeps and reuses the prefixes that it has; SGLang's does
	// so only when switched on.
	DecodeReuse bool

	// Exposition is whose names the metrics have; empty: those of the connector's engine.
	Exposition string
	// ORCA is the address where load reports are streamed (gRPC). Empty: nowhere.
	ORCA string

	// CachedTokensInUsage reports usage.prompt_tokens_details.cached_tokens.
	CachedTokensInUsage bool
	// Embeddings serves the paths of pooling models: /v1/embeddings, /v2/embed, /rerank, /score, /classify,
	// /pooling.
	Embeddings bool
	// NoReady has no /ready, as SGLang before it.
	NoReady bool
	// TemplateTokens are written by the chat template before all others, as another version
	// of it may; engines with other numbers of them tokenise a chat differently.
	TemplateTokens int
	// ReasoningTokens is how many tokens of reasoning a model writes before its answer in a
	// chat, which the engine's reasoning parser takes apart; 0: the model does not reason.
	ReasoningTokens int
	// TransformersServe refuses fields and paths as Hugging Face's transformers serve does, and streams
	// responses unless told not to.
	TransformersServe bool
	// NoTokenIDs ignores return_token_ids, as vLLM before 0.10.2 does.
	NoTokenIDs bool
	// ForcedToolPrefillFails answers 500 to a prefill of one token with a forced
	// tool_choice (vLLM issue 38911).
	ForcedToolPrefillFails bool
	// WholeCalls tells a tool call of a chat's stream when it is complete, as some parsers do
	// (vLLM's of Kimi K3, vllm-project/vllm#50627).
	WholeCalls bool
	// KeepAlive is after how long a silence between the tokens of a chat's stream a comment is sent, in
	// real time; 0: never.
	KeepAlive time.Duration
}

// Default is an engine like vLLM with Llama 3.1 8B on one H200: the KV bytes per
// token and the link speed are taken from there. The timing coefficients are those
// of NVIDIA's Dynamo mocker; they were not measured here.
func Default() Config {
	return Config{
		Listen:              "127.0.0.1:0",
		Role:                RoleBoth,
		Model:               "sim-model",
		Version:             "0.31.0+tandem.sim",
		MaxAdapters:         4,
		DataParallel:        1,
		TimeScale:           1,
		BlockSize:           16,
		Blocks:              16384,
		MaxModelLen:         131072,
		KVType:              "auto",
		MaxSeqs:             256,
		MaxBatchedTokens:    8192,
		MeanOutputTokens:    120,
		ReplayBatches:       10000,
		LinkBytesPerSecond:  50e9,
		LinkLatency:         500 * time.Microsecond,
		KVBytesPerToken:     131072,
		Lease:               30 * time.Second,
		LoadFailure:         LoadFailureRecompute,
		AnswerLife:          480 * time.Second,
		Connector:           ConnectorNIXL,
		MeetTimeout:         300 * time.Second,
		CachedTokensInUsage: true,
		Embeddings:          true,
	}
}

// Validate reports every setting that cannot work.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Role == RolePrefill || c.Role == RoleDecode || c.Role == RoleBoth, "role %q is none of prefill, decode, both", c.Role)
	check(c.LoadFailure == LoadFailureRecompute || c.LoadFailure == LoadFailureFail, "load failure policy %q is neither recompute nor fail", c.LoadFailure)
	check(slices.Contains(Connectors(), c.Connector), "connector %q is none of %v", c.Connector, Connectors())
	check(slices.Contains(Expositions(), c.exposition()), "metrics %q are none of %v", c.Exposition, Expositions())
	check(c.MeetTimeout > 0, "meet timeout is %v", c.MeetTimeout)
	check(c.Model != "", "model has no name")
	check(c.TimeScale >= 0, "time scale %v is negative", c.TimeScale)
	check(c.StepBase >= 0, "a step takes %v", c.StepBase)
	check(c.BlockSize > 0 && c.Blocks > 0, "KV cache of %d blocks of %d tokens", c.Blocks, c.BlockSize)
	check(c.MaxModelLen > 1 && c.MaxModelLen <= c.Blocks*c.BlockSize,
		"max model length %d does not fit the KV cache of %d tokens", c.MaxModelLen, c.Blocks*c.BlockSize)
	check(c.MaxSeqs > 0 && c.MaxBatchedTokens > 0, "a batch of %d sequences and %d tokens", c.MaxSeqs, c.MaxBatchedTokens)
	check(c.MaxAdapters > 0, "max adapters is %d", c.MaxAdapters)
	check(c.DataParallel > 0, "data parallel size is %d", c.DataParallel)
	check(c.MeanOutputTokens > 0, "mean output is %d tokens", c.MeanOutputTokens)
	check(c.MinOutputTokens >= 0, "min output is %d tokens", c.MinOutputTokens)
	check(c.ReasoningTokens >= 0, "%d tokens of reasoning", c.ReasoningTokens)
	check(c.UplinkBytesPerSecond >= 0, "an uplink of %v bytes/s", c.UplinkBytesPerSecond)
	check(c.LinkBytesPerSecond > 0 && c.KVBytesPerToken > 0, "a link of %v bytes/s for %d bytes per token", c.LinkBytesPerSecond, c.KVBytesPerToken)
	check(c.Lease > 0, "lease is %v", c.Lease)
	check(c.AnswerLife > 0, "the KV of an answer is held for %v", c.AnswerLife)
	check(!c.KeepAnswers || c.Connector == ConnectorNIXL, "connector %q keeps no answers", c.Connector)
	check(c.ReplayEndpoint == "" || c.EventsEndpoint != "", "replay endpoint without events endpoint")
	check(c.LoadEndpoint == "" || c.Connector == ConnectorSGLang && c.EventsEndpoint != "", "load is pushed by SGLang alone, beside its events")
	check(c.ReplayBatches > 0, "replay of %d batches", c.ReplayBatches)
	return errors.Join(errs...)
}
