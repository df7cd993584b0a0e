package engine

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// rankMeters are the Prometheus metrics of one rank, with the names and labels that
// vLLM's have on the wire (vllm/v1/metrics/loggers.py and its NIXL connector's).
type rankMeters struct {
	prefixQueries, prefixHits     prometheus.Counter // tokens
	externalQueries, externalHits prometheus.Counter // tokens
	promptTokens, outputTokens    prometheus.Counter
	preemptions                   prometheus.Counter
	kvExpired, failedTransfers    prometheus.Counter
	failedNotifications           prometheus.Counter     // heartbeats and releases
	success                       *prometheus.CounterVec // by finished_reason
	changes                       *atomic.Uint64

	ttft, itl, tpot, e2e              prometheus.Observer // seconds, as are the next
	queue, prefill, decode, inference prometheus.Observer
	promptLength, outputLength        prometheus.Observer // tokens
	transferTime                      prometheus.Observer // seconds
	transferBytes, transferBlocks     prometheus.Observer
}

// Histogram bounds. Those of seconds begin low for scaled-down time.
var (
	secondsBuckets = []float64{.0001, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 160}
	tokensBuckets  = []float64{1, 10, 50, 100, 500, 1000, 5000, 10000, 50000, 100000}
	bytesBuckets   = prometheus.ExponentialBuckets(1<<16, 4, 10)
)

// newRankMeters registers the metrics of a rank; its gauges show the load that was read for the page.
// Its changes are counted.
func newRankMeters(registry *prometheus.Registry, r *rank, changes *atomic.Uint64) *rankMeters {
	labels := prometheus.Labels{"model_name": r.cfg.Model, "engine": strconv.Itoa(r.index)}
	reg := promauto.With(registry) // WrapRegistererWith describes each metric anew for each page
	counter := func(name, help string) prometheus.Counter {
		return countedCounter{reg.NewCounter(prometheus.CounterOpts{Name: "vllm:" + name, Help: help, ConstLabels: labels}), changes}
	}
	histogram := func(name, help string, buckets []float64) prometheus.Observer {
		return countedObserver{reg.NewHistogram(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, ConstLabels: labels, Buckets: buckets}), changes}
	}
	gauge := func(name, help string, more prometheus.Labels, read func(rankLoad) float64) {
		reg.NewGaugeFunc(prometheus.GaugeOpts{Name: "vllm:" + name, Help: help, ConstLabels: withLabels(labels, more)},
			func() float64 { return read(r.shown) })
	}
	gauge("num_requests_running", "Requests in the batch.", nil, func(l rankLoad) float64 { return float64(l.running) })
	gauge("num_requests_waiting", "Requests waiting, those for remote KV included.", nil,
		func(l rankLoad) float64 { return float64(l.waiting + l.loading) })
	gauge("num_requests_waiting_by_reason", "Requests waiting, by reason.", prometheus.Labels{"reason": "capacity"},
		func(l rankLoad) float64 { return float64(l.waiting) })
	gauge("num_requests_waiting_by_reason", "Requests waiting, by reason.", prometheus.Labels{"reason": "deferred"},
		func(l rankLoad) float64 { return float64(l.loading) })
	gauge("kv_cache_usage_perc", "KV cache in use; 1 means 100 percent.", nil, func(l rankLoad) float64 { return l.kvShare })
	gauge("engine_sleep_state", "1 for the state the engine is in.", prometheus.Labels{"sleep_state": "awake"},
		func(l rankLoad) float64 { return oneIf(!l.asleep) })
	gauge("engine_sleep_state", "1 for the state the engine is in.", prometheus.Labels{"sleep_state": "discard_all"},
		func(l rankLoad) float64 { return oneIf(l.asleep) })
	reg.NewGauge(prometheus.GaugeOpts{
		Name: "vllm:cache_config_info", Help: "The KV cache's configuration, as labels.",
		ConstLabels: prometheus.Labels{
			"engine": labels["engine"], "block_size": fmt.Sprint(r.cfg.BlockSize), "num_gpu_blocks": fmt.Sprint(r.cfg.Blocks), "cache_dtype": r.cfg.KVType,
			"kv_cache_size_tokens": fmt.Sprint(r.cfg.BlockSize * r.cfg.Blocks),
		},
	}).Set(1)
	return &rankMeters{
		changes:             changes,
		prefixQueries:       counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
		prefixHits:          counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
		externalQueries:     counter("external_prefix_cache_queries_total", "Prompt tokens asked of another engine."),
		externalHits:        counter("external_prefix_cache_hits_total", "Prompt tokens whose KV came from another engine."),
		promptTokens:        counter("prompt_tokens_total", "Prompt tokens processed."),
		outputTokens:        counter("generation_tokens_total", "Tokens generated."),
		preemptions:         counter("num_preemptions_total", "Requests preempted."),
		kvExpired:           counter("nixl_num_kv_expired_reqs_total", "Hand-offs whose lease ended unread."),
		failedTransfers:     counter("nixl_num_failed_transfers_total", "KV transfers that failed."),
		failedNotifications: counter("nixl_num_failed_notifications_total", "Messages about hand-offs that failed."),
		success: reg.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total",
			Help: "Requests ended, by reason.", ConstLabels: labels}, []string{"finished_reason"}),
		ttft:           histogram("time_to_first_token_seconds", "Arrival to first token.", secondsBuckets),
		itl:            histogram("inter_token_latency_seconds", "Gap between tokens.", secondsBuckets),
		tpot:           histogram("request_time_per_output_token_seconds", "Mean gap between the tokens of a request.", secondsBuckets),
		e2e:            histogram("e2e_request_latency_seconds", "Arrival to last token.", secondsBuckets),
		queue:          histogram("request_queue_time_seconds", "Arrival to the first batch.", secondsBuckets),
		prefill:        histogram("request_prefill_time_seconds", "First batch to first token.", secondsBuckets),
		decode:         histogram("request_decode_time_seconds", "First token to last.", secondsBuckets),
		inference:      histogram("request_inference_time_seconds", "First batch to last token.", secondsBuckets),
		promptLength:   histogram("request_prompt_tokens", "Prompt tokens of a request.", tokensBuckets),
		outputLength:   histogram("request_generation_tokens", "Tokens generated for a request.", tokensBuckets),
		transferTime:   histogram("nixl_xfer_time_seconds", "Duration of a KV transfer.", secondsBuckets),
		transferBytes:  histogram("nixl_bytes_transferred", "Bytes of a KV transfer.", bytesBuckets),
		transferBlocks: histogram("nixl_num_descriptors", "Blocks of a KV transfer.", tokensBuckets),
	}
}

// withLabels joins labels.
func withLabels(labels, more prometheus.Labels) prometheus.Labels {
	all := maps.Clone(labels)
	maps.Copy(all, more)
	return all
}

// recordToken records one token of an answer.
func (m *rankMeters) recordToken(s *sequence, now time.Time) {
	m.outputTokens.Inc()
	if s.times.first.IsZero() {
		s.times.first = now
		m.promptTokens.Add(float64(s.prompt))
		m.ttft.Observe(now.Sub(s.times.arrived).Seconds())
	} else {
		m.itl.Observe(now.Sub(s.times.last).Seconds())
	}
	s.times.last = now
}

// recordEnd records a sequence at its end; times it never reached are left out.
func (m *rankMeters) recordEnd(s *sequence, finish string) {
	countedCounter{m.success.WithLabelValues(finish), m.changes}.Inc()
	t := s.times
	if t.first.IsZero() || t.scheduled.IsZero() {
		return
	}
	m.queue.Observe(t.scheduled.Sub(t.arrived).Seconds())
	m.prefill.Observe(t.first.Sub(t.scheduled).Seconds())
	m.decode.Observe(t.last.Sub(t.first).Seconds())
	m.inference.Observe(t.last.Sub(t.scheduled).Seconds())
	m.e2e.Observe(t.last.Sub(t.arrived).Seconds())
	m.promptLength.Observe(float64(s.prompt))
	m.outputLength.Observe(float64(s.emitted()))
	if gaps := s.emitted() - 1; gaps > 0 {
		m.tpot.Observe(t.last.Sub(t.first).Seconds() / float64(gaps))
	}
}

// recordTransfer records a KV transfer that succeeded.
func (m *rankMeters) recordTransfer(took time.Duration, blocks int, blockBytes float64) {
	m.transferTime.Observe(took.Seconds())
	m.transferBytes.Observe(float64(blocks) * blockBytes)
	m.transferBlocks.Observe(float64(blocks))
}

// adapterCollector reports the adapters that run, once any has. As in vLLM 0.32 the series has no labels of the
// rank, and lists each as running and as waiting (LoRARequestStates.update_scheduler_stats in v1/metrics/stats.py);
// one that waits is not listed before it has run, since that it was queued is told with its first output.
type adapterCollector struct {
	ranks []*rank
	desc  *prometheus.Desc
}

func newAdapterCollector(ranks []*rank) *adapterCollector {
	return &adapterCollector{ranks: ranks, desc: prometheus.NewDesc("vllm:lora_requests_info",
		"Adapters running and waiting; the value is the time of the sample.",
		[]string{"max_lora", "running_lora_adapters", "waiting_lora_adapters"}, nil)}
}

func (c *adapterCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c *adapterCollector) Collect(out chan<- prometheus.Metric) {
	used := false
	var names []string
	for _, r := range c.ranks {
		l := r.shown
		used = used || l.adaptersUsed
		names = append(names, l.adapters...)
	}
	if !used {
		return
	}
	slices.Sort(names)
	list := strings.Join(slices.Compact(names), ",")
	out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(time.Now().UnixMilli())/1000,
		strconv.Itoa(c.ranks[0].cfg.MaxAdapters), list, list)
}

// rankLoad is what a rank is doing now.
type rankLoad struct {
	running, waiting, loading int
	kvShare                   float64 // 0..1
	blocks, usedBlocks        int     // of the KV cache
	blockSize                 int     // tokens
	waitingTokens             int     // of the prompts that wait
	asleep                    bool
	adaptersUsed              bool     // since the start
	adapters                  []string // of the requests that run
}

func (r *rank) load() rankLoad {
	r.mu.Lock()
	defer r.mu.Unlock()
	prompts := 0
	for _, s := range r.waiting {
		prompts += s.prompt
	}
	return rankLoad{
		running: len(r.running), waiting: len(r.waiting), loading: len(r.loading), waitingTokens: prompts,
		blocks: r.cache.total(), usedBlocks: r.cache.used(), blockSize: r.cfg.BlockSize,
		kvShare: r.cache.share(), asleep: r.asleep, adaptersUsed: r.adaptersUsed,
		adapters: adaptersOf(r.running),
	}
}

// adaptersOf lists the adapters of sequences, each as often as it is used.
func adaptersOf(all []*sequence) []string {
	var names []string
	for _, s := range all {
		if s.adapter != "" {
			names = append(names, s.adapter)
		}
	}
	return names
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
