package load

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Reading is one number of a load, by the name that a configuration uses.
type Reading string

const (
	Running       Reading = "running"
	Waiting       Reading = "waiting"
	RunningTokens Reading = "running_tokens"
	WaitingTokens Reading = "waiting_tokens"
	KVUsed        Reading = "kv_used"
	KVTokens      Reading = "kv_tokens"
	BlockTokens   Reading = "block_tokens"
	Blocks        Reading = "blocks" // with block_tokens, another way to give kv_tokens
	TokenBytes    Reading = "kv_bytes_per_token"
	MovedBytes    Reading = "moved_bytes" // with moved_tokens, another way to give kv_bytes_per_token
	MovedTokens   Reading = "moved_tokens"
	Prefills      Reading = "prefills"        // that ended, since the engine's start
	PrefillTime   Reading = "prefill_seconds" // from the first step to the first token, of all of them
	AdapterNames  Reading = "adapters"        // in the labels of vLLM's series; its value is their time
)

var readings = [...]Reading{Running, Waiting, RunningTokens, WaitingTokens, KVUsed, KVTokens, BlockTokens, Blocks, TokenBytes, MovedBytes, MovedTokens, Prefills, PrefillTime, AdapterNames}

// Table lists under which names one engine exposes its load: for each reading
// the series that may hold it, the first that is there counts; of MovedBytes the sum of all.
type Table struct {
	Engine string
	Path   string // of the exposition
	Series map[Reading][]Series
}

// MetricsPath is where an engine has its metrics unless it is configured otherwise.
const MetricsPath = "/metrics"

// DefaultTables are the names that engines use today, newest first
// (vllm/v1/metrics/loggers.py, sglang/srt/metrics/collector.py, and for TensorRT-LLM
// and Triton the table of the Gateway API Inference Extension's model-server
// protocol). num_tokens_* is what that protocol plans for token-level load. What vLLM's connectors moved is
// in vllm/distributed/kv_transfer/kv_connector/v1 (nixl/stats.py, offloading/metrics.py), the tokens of it in
// vllm/v1/metrics/stats.py (PromptTokenStats; 0.32). How many tokens its KV cache has room for vLLM counts itself, since
// groups of layers share the blocks and ranks of decode context parallelism part one (update_kv_cache_capacity in
// v1/core/kv_cache_utils.py 0.32); older versions have blocks alone.
func DefaultTables() []Table {
	name := func(names ...string) (all []Series) {
		for _, n := range names {
			all = append(all, Series{Name: n})
		}
		return all
	}
	in := func(n, label string) []Series { return []Series{{Name: n, Label: label}} }
	where := func(n, label, value string) []Series {
		return []Series{{Name: n, Where: map[string]string{label: value}}}
	}
	const requests, blocks = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"
	return []Table{
		{Engine: "vllm", Path: MetricsPath, Series: map[Reading][]Series{
			Running:       name("vllm:num_requests_running"),
			Waiting:       name("vllm:num_requests_waiting"),
			RunningTokens: name("vllm:num_tokens_running"),
			WaitingTokens: name("vllm:num_tokens_waiting"),
			KVUsed:        name("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
			KVTokens:      in("vllm:cache_config_info", "kv_cache_size_tokens"),
			BlockTokens:   in("vllm:cache_config_info", "block_size"),
			Blocks:        in("vllm:cache_config_info", "num_gpu_blocks"),
			MovedBytes:    name("vllm:nixl_bytes_transferred_sum", "vllm:kv_offload_load_bytes_total"),
			MovedTokens: append(where("vllm:prompt_tokens_by_source_total", "source", "external_kv_transfer"),
				name("vllm:external_prefix_cache_hits_total")...),
			Prefills:     name("vllm:request_prefill_time_seconds_count"),
			PrefillTime:  name("vllm:request_prefill_time_seconds_sum"),
			AdapterNames: name("vllm:lora_requests_info"),
		}},
		{Engine: "sglang", Path: MetricsPath, Series: map[Reading][]Series{
			Running:       name("sglang:num_running_reqs"),
			Waiting:       name("sglang:num_queue_reqs"),
			RunningTokens: name("sglang:num_used_tokens"),
			KVUsed:        name("sglang:full_token_usage", "sglang:token_usage"),
			KVTokens:      name("sglang:max_total_num_tokens"),
			BlockTokens:   append(name("sglang:page_size"), in("sglang:cache_config_info", "page_size")...),
			Blocks:        in("sglang:cache_config_info", "num_pages"),
		}},
		{Engine: "triton", Path: MetricsPath, Series: map[Reading][]Series{
			Running:     where(requests, "request_type", "scheduled"),
			Waiting:     where(requests, "request_type", "waiting"),
			KVUsed:      where(blocks, "kv_cache_block_type", "fraction"),
			BlockTokens: where(blocks, "kv_cache_block_type", "tokens_per"),
			Blocks:      where(blocks, "kv_cache_block_type", "max"),
		}},
		{Engine: "trtllm", Path: "/prometheus/metrics", Series: map[Reading][]Series{
			Running:     name("trtllm_num_requests_running"),
			Waiting:     name("trtllm_num_requests_waiting"),
			KVUsed:      name("trtllm_kv_cache_utilization"),
			BlockTokens: name("trtllm_kv_cache_tokens_per_block"),
			Blocks:      name("trtllm_kv_cache_max_blocks"),
			Prefills:    name("trtllm_request_prefill_time_seconds_count"),
			PrefillTime: name("trtllm_request_prefill_time_seconds_sum"),
		}},
	}
}

// ParseTables returns the default tables with those of a configuration first:
// entries such as "vllm.waiting=my_queue_length", or of an engine of its own,
// "mine.running=busy{kind=all}", which is looked for at /metrics.
func ParseTables(entries []string) ([]Table, error) {
	tables := DefaultTables()
	for _, entry := range entries {
		target, text, ok := strings.Cut(entry, "=")
		engine, reading, dotted := strings.Cut(target, ".")
		if !ok || !dotted || engine == "" || !slices.Contains(readings[:], Reading(reading)) {
			return nil, fmt.Errorf("load-metric %q: want engine.reading=series, reading one of %v", entry, readings)
		}
		series, err := ParseSeries(text)
		if err != nil {
			return nil, fmt.Errorf("load-metric %q: %w", entry, err)
		}
		i := slices.IndexFunc(tables, func(t Table) bool { return t.Engine == engine })
		if i < 0 {
			i = len(tables)
			tables = append(tables, Table{Engine: engine, Path: MetricsPath, Series: map[Reading][]Series{}})
		}
		tables[i].Series[Reading(reading)] = append([]Series{series}, tables[i].Series[Reading(reading)]...)
	}
	return tables, nil
}

// parseExposition reads a Prometheus text.
func parseExposition(text []byte) (families map[string]*dto.MetricFamily, err error) {
	defer func() {
		// expfmt v0.70.1 dereferences nil on some malformed texts.
		if p := recover(); p != nil {
			families, err = nil, fmt.Errorf("metrics: the parser failed: %v", p)
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if families, err = parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return families, nil
}

// readTables reads the lines of an exposition that belong to the tables' families by the first of the tables
// that finds anything in them. With a rank only the series of that rank count; without, counts are summed
// over the ranks and KV use is the fullest rank's. A load of which nothing is known
// is no error: statistics may be off.
func readTables(lines []byte, tables []Table, rank *int) (Load, error) {
	families, err := parseExposition(lines)
	if err != nil {
		return Load{}, err
	}
	for _, t := range tables {
		if load := t.read(families, rank); load.Known() {
			return load, nil
		}
	}
	return Load{}, nil
}

// namesIn lists the families that a load is read from.
func namesIn(tables []Table) (names []string) {
	for _, t := range tables {
		for _, all := range t.Series {
			for _, s := range all {
				names = append(names, s.Name)
			}
		}
	}
	return names
}

func (t Table) read(families map[string]*dto.MetricFamily, rank *int) Load {
	sum := func(a, b float64) float64 { return a + b }
	first := func(r Reading, join func(a, b float64) float64) Gauge {
		for _, s := range t.Series[r] {
			if g := s.read(families, rank, join); g.Known {
				return g
			}
		}
		return Gauge{}
	}
	l := Load{
		Engine:         t.Engine,
		Running:        first(Running, sum),
		Waiting:        first(Waiting, sum),
		RunningTokens:  first(RunningTokens, sum),
		WaitingTokens:  first(WaitingTokens, sum),
		KVUsed:         first(KVUsed, math.Max),
		KVTokens:       first(KVTokens, sum),
		BlockTokens:    first(BlockTokens, math.Max),
		TokenBytes:     first(TokenBytes, math.Max),
		Prefills:       first(Prefills, sum),
		PrefillSeconds: first(PrefillTime, sum),
		Adapters:       parseAdapters(families, t.Series[AdapterNames]),
	}
	blocks := first(Blocks, sum)
	if capacity := blocks.Value * l.BlockTokens.Value; !l.KVTokens.Known && blocks.Known && capacity > 0 && usable(capacity) {
		l.KVTokens = Gauge{Value: capacity, Known: true}
	}
	if !l.TokenBytes.Known {
		moved := Gauge{}
		for _, s := range t.Series[MovedBytes] { // a MultiConnector has several
			if g := s.read(families, rank, sum); g.Known {
				moved = Gauge{Value: moved.Value + g.Value, Known: true}
			}
		}
		l.TokenBytes = perToken(moved, first(MovedTokens, sum))
	}
	return l
}

// leastMoved is the tokens whose KV has to have moved before the bytes of one are believed: below, the
// empty ends of last blocks are too much of them.
const leastMoved = 1000

// perToken is the bytes of KV of a token, as an engine has got them from others since its start: of all its
// tensor-parallel ranks together, and with the empty ends of last blocks, which move too.
func perToken(bytes, tokens Gauge) Gauge {
	if !bytes.Known || !tokens.Known || bytes.Value <= 0 || tokens.Value < leastMoved {
		return Gauge{}
	}
	return Gauge{Value: bytes.Value / tokens.Value, Known: true}
}
