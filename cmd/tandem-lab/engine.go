package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// engineCommand runs one simulated engine until its context ends.
func engineCommand() *cobra.Command {
	cfg := engine.Default()
	var faults []string
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Run a simulated engine that speaks vLLM's API and hands its KV over",
		Long: `Run a simulated LLM engine: vLLM's HTTP API, a paged KV cache with KV events, and
prefill/decode hand-offs that are really pulled from the other engine and checked.
Time passes by published formulas, scaled by --time-scale.

The ground truth is at GET /sim/state and /sim/blocks. POST /sim/faults with a fault
as JSON makes the engine misbehave, DELETE /sim/faults ends that.`,
		Example: `  tandem-lab engine --listen :8001 --role prefill
  tandem-lab engine --listen :8002 --role decode --time-scale 0.1
  tandem-lab engine --listen :8003 --events tcp://*:5557 --replay tcp://*:5657
  tandem-lab engine --listen :8004 --fault '{"kind":"status","status":503,"count":3}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := engine.Start(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			for _, text := range faults {
				var f engine.Fault
				if err := json.Unmarshal([]byte(text), &f); err != nil {
					return fmt.Errorf("--fault %s: %w", text, err)
				}
				if err := e.AddFault(f); err != nil {
					return fmt.Errorf("--fault %s: %w", text, err)
				}
			}
			state := e.State()
			fmt.Fprintf(cmd.OutOrStdout(), "%s engine of %s at %s (engine id %s)\n", state.Role, state.Model, e.URL(), state.EngineID)
			if len(state.EventsEndpoints) > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "KV events at %s\n", strings.Join(state.EventsEndpoints, ", "))
			}
			<-cmd.Context().Done()
			return e.Close()
		},
	}
	engineFlags(cmd.Flags(), &cfg)
	cmd.Flags().StringArrayVar(&faults, "fault", nil, "a fault to start with, as JSON (repeatable)")
	cmd.Flags().SortFlags = false
	return cmd
}

// engineFlags binds the configuration of an engine, whose values are the defaults.
func engineFlags(f *pflag.FlagSet, cfg *engine.Config) {
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:8000", "address of the API; port 0 takes any free one")
	f.StringVar(&cfg.Control, "control", cfg.Control, "second address for /sim/ that stays up while faults close the first")
	f.StringVar(&cfg.SideChannel, "side-channel", cfg.SideChannel,
		"address from which decodes pull KV (default: any free port on the host of --listen)")
	f.StringVar(&cfg.AdvertiseHost, "advertise-host", cfg.AdvertiseHost, "host that hand-offs name (default: the host of --side-channel)")
	f.StringVar(&cfg.Role, "role", cfg.Role, "prefill, decode or both; a name only, any engine can do both")

	f.StringVar(&cfg.Model, "model", cfg.Model, "name of the model; engines of one model give the same answers")
	f.StringVar(&cfg.HandoffKey, "handoff-key", cfg.HandoffKey, "key by which hand-offs of TensorRT-LLM must be signed (its internal_request_auth_key)")
	f.StringVar(&cfg.APIKey, "api-key", cfg.APIKey, "key that requests to /v1/ must bear")
	f.StringVar(&cfg.Weights, "weights", cfg.Weights, "version of the weights; others give other answers and other KV")
	f.StringVar(&cfg.Version, "engine-version", cfg.Version, "version that /version returns")
	f.StringSliceVar(&cfg.Adapters, "lora", cfg.Adapters, "LoRA adapters loaded at start, comma-separated")
	f.IntVar(&cfg.MaxAdapters, "max-loras", cfg.MaxAdapters, "adapters that may be in one batch")
	f.DurationVar(&cfg.AdapterLoad, "lora-load-time", cfg.AdapterLoad, "time that loading an adapter takes")
	f.IntVar(&cfg.MeanOutputTokens, "mean-output-tokens", cfg.MeanOutputTokens, "mean length of an answer that ends by itself, beyond --min-output-tokens")
	f.IntVar(&cfg.MinOutputTokens, "min-output-tokens", cfg.MinOutputTokens, "tokens that an answer of free text has at least before it ends by itself")
	f.IntVar(&cfg.ReasoningTokens, "reasoning-tokens", cfg.ReasoningTokens, "tokens of reasoning before the answer in a chat, separate as by a reasoning parser; 0: none")
	f.IntVar(&cfg.DataParallel, "data-parallel-size", cfg.DataParallel, "ranks behind the address, chosen by the X-data-parallel-rank header")
	f.BoolVar(&cfg.RankPorts, "rank-ports", cfg.RankPorts, "give each rank a port of its own, from that of --listen on")
	f.BoolVar(&cfg.Lockstep, "lockstep", cfg.Lockstep, "let the ranks step together, as with wide expert parallelism")

	f.Float64Var(&cfg.TimeScale, "time-scale", cfg.TimeScale,
		"factor on all simulated time: 1 real, 0.01 a hundred times faster, 0 no waiting")
	f.DurationVar(&cfg.StepBase, "step-base", cfg.StepBase,
		"what every step takes whatever is in it, beside the formulas: 300ms as on a CPU, 50ms to 100ms as with experts over many hosts")
	f.IntVar(&cfg.BlockSize, "block-size", cfg.BlockSize, "tokens in a KV block")
	f.IntVar(&cfg.Blocks, "blocks", cfg.Blocks, "KV blocks of each rank")
	f.BoolVar(&cfg.NoPrefixCaching, "no-enable-prefix-caching", cfg.NoPrefixCaching, "find no prompt's beginning in the cache")
	f.StringVar(&cfg.KVType, "kv-cache-dtype", cfg.KVType, "type of the KV's numbers that it reports")
	f.IntVar(&cfg.MaxModelLen, "max-model-len", cfg.MaxModelLen, "longest prompt plus answer, in tokens")
	f.IntVar(&cfg.MaxSeqs, "max-num-seqs", cfg.MaxSeqs, "sequences in one batch")
	f.IntVar(&cfg.MaxBatchedTokens, "max-num-batched-tokens", cfg.MaxBatchedTokens, "tokens computed in one step")
	f.BoolVar(&cfg.PriorityScheduling, "priority-scheduling", cfg.PriorityScheduling, "serve by the priority field, lowest first, and with SGLang and TensorRT-LLM highest first")

	f.StringVar(&cfg.EventsEndpoint, "events", cfg.EventsEndpoint,
		"ZMQ endpoint for KV events: bound with a wildcard (tcp://*:5557), else connected to; rank r uses port + r")
	f.StringVar(&cfg.ReplayEndpoint, "replay", cfg.ReplayEndpoint, "ZMQ endpoint that replays missed events (tcp://*:5657)")
	f.StringVar(&cfg.EventsTopic, "events-topic", cfg.EventsTopic, "topic of the events")
	f.BoolVar(&cfg.EventsAsMaps, "events-as-maps", cfg.EventsAsMaps, "encode events as maps (newer vLLM) and not as arrays")
	f.IntVar(&cfg.ReplayBatches, "replay-batches", cfg.ReplayBatches, "batches of events kept for replay")
	f.StringVar(&cfg.HashSeed, "hash-seed", cfg.HashSeed, "seed of block hashes (vLLM's PYTHONHASHSEED; default: random)")

	f.StringVar(&cfg.Rack, "rack", cfg.Rack, "rack that the engine stands in")
	f.Float64Var(&cfg.UplinkBytesPerSecond, "uplink-bytes-per-second", cfg.UplinkBytesPerSecond,
		"speed at which KV leaves for engines in other racks; 0: as within")
	f.Float64Var(&cfg.LinkBytesPerSecond, "link-bytes-per-second", cfg.LinkBytesPerSecond, "speed of the network link, shared by concurrent transfers")
	f.DurationVar(&cfg.LinkLatency, "link-latency", cfg.LinkLatency, "added to each transfer")
	f.IntVar(&cfg.KVBytesPerToken, "kv-bytes-per-token", cfg.KVBytesPerToken, "size of a token's KV")
	f.DurationVar(&cfg.Lease, "kv-lease", cfg.Lease, "how long a finished prefill holds its KV for the decode, in real time")
	f.BoolVar(&cfg.TransformersServe, "transformers-serve", cfg.TransformersServe, "refuse fields that Hugging Face's transformers serve does not know, and stream responses unless told not to")
	f.BoolVar(&cfg.KeepAnswers, "keep-answers", cfg.KeepAnswers, "hold the KV of answers for the next turn's prefill, and let prefill fetch it (vLLM's bidirectional_kv_xfer)")
	f.DurationVar(&cfg.AnswerLife, "answer-life", cfg.AnswerLife, "how long the KV of an answer is held with --keep-answers, in real time")
	f.StringVar(&cfg.LoadFailure, "kv-load-failure", cfg.LoadFailure, "what a decode does when a hand-off is of no use: recompute or fail")

	f.StringVar(&cfg.Connector, "connector", cfg.Connector, "how KV is handed over: "+strings.Join(engine.Connectors(), ", "))
	f.DurationVar(&cfg.MeetTimeout, "meet-timeout", cfg.MeetTimeout,
		"how long a leg waits for the other one where both run at once, in real time")
	f.BoolVar(&cfg.DecodeReuse, "decode-reuse", cfg.DecodeReuse, "SGLang's decode reuses the prefixes that it holds")

	f.StringVar(&cfg.Exposition, "metrics", cfg.Exposition, "whose names the metrics have: "+strings.Join(engine.Expositions(), ", ")+" (default: those of the connector's engine)")
	f.StringVar(&cfg.ORCA, "orca", cfg.ORCA, "address where load reports are streamed by gRPC (OpenRcaService)")
	f.BoolVar(&cfg.CachedTokensInUsage, "cached-tokens", cfg.CachedTokensInUsage, "report cached_tokens in usage")
	f.BoolVar(&cfg.Embeddings, "embeddings", cfg.Embeddings, "serve /v1/embeddings, /v2/embed, /rerank, /score, /classify and /pooling")
	f.DurationVar(&cfg.KeepAlive, "sse-keep-alive", cfg.KeepAlive, "silence after which a chat's stream has a comment, in real time; 0: none")
	f.BoolVar(&cfg.WholeCalls, "whole-calls", cfg.WholeCalls, "tell a tool call of a chat's stream when it is complete, as some parsers do")
	f.BoolVar(&cfg.ForcedToolPrefillFails, "forced-tool-prefill-fails", cfg.ForcedToolPrefillFails,
		"answer 500 to a one-token prefill with a forced tool_choice (vLLM issue 38911)")
}
