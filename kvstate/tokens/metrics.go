package tokens

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are shared by the sources of all models. Labels are bounded by the
// configuration. A nil *Metrics measures nothing.
type Metrics struct {
	prompts  *prometheus.CounterVec   // model, outcome
	seconds  *prometheus.HistogramVec // model
	asks     *prometheus.CounterVec   // model, outcome
	prefixes *prometheus.CounterVec   // model, outcome
	known    *prometheus.GaugeVec     // model
	bytes    *prometheus.GaugeVec     // model
	checks   *prometheus.CounterVec   // model, api, by, outcome
}

// What became of a prompt.
const (
	outcomeComplete = "whole"
	outcomePart     = "part"
	outcomeChunks   = "chunks"
	outcomeUnknown  = "unknown"
)

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"model"})
		reg.MustRegister(g)
		return g
	}
	m := &Metrics{
		prompts: counter("tandem_tokens_prompts_total",
			"Prompts by what was known of their tokens: whole, part, chunks (of text), unknown.",
			"model", "outcome"),
		asks: counter("tandem_tokenize_calls_total",
			"Prompts that an engine was asked to tokenise: ok, failed, refused (not asked: too many at once, or engines do not answer).",
			"model", "outcome"),
		prefixes: counter("tandem_tokens_learned_total",
			"Prompts whose tokens were learned, by whether they were as they would have been claimed: confirmed, contradicted.",
			"model", "outcome"),
		checks: counter("tandem_tokens_checked_total",
			"Prompts whose tokens were known, by how (engine, tokenize, translation, tokenizer, prefill, request) and whether the engine's usage counted as many: right, wrong. A translation or a tokenizer that was wrong, or an engine's /tokenize that was wrong of three chats in a row, is left alone for prompts with the same system prompt and tools.",
			"model", "api", "by", "outcome"),
		known: gauge("tandem_tokens_known_prompts", "Prompts whose tokens are remembered."),
		bytes: gauge("tandem_tokens_memory_bytes", "Memory that remembered prompts take, about."),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tandem_tokens_seconds", Help: "Time to find a prompt's tokens.",
			Buckets: []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1},
		}, []string{"model"}),
	}
	reg.MustRegister(m.seconds)
	return m
}

func outcomeOf(t *Tokens, ok bool) string {
	switch {
	case !ok:
		return outcomeUnknown
	case t.Chunks != nil:
		return outcomeChunks
	case t.Complete:
		return outcomeComplete
	}
	return outcomePart
}

func (m *Metrics) asked(model, outcome string, took time.Duration) {
	if m != nil {
		m.prompts.WithLabelValues(model, outcome).Inc()
		m.seconds.WithLabelValues(model).Observe(took.Seconds())
	}
}

func (m *Metrics) engineAsked(model, outcome string) {
	if m != nil {
		m.asks.WithLabelValues(model, outcome).Inc()
	}
}

// learned counts a prompt that a memory took in.
func (m *Metrics) learned(model string, from *memory, asClaimed bool) {
	if m == nil {
		return
	}
	outcome := "confirmed"
	if !asClaimed {
		outcome = "contradicted"
	}
	m.prefixes.WithLabelValues(model, outcome).Inc()
	prompts, bytes := from.size()
	m.known.WithLabelValues(model).Set(float64(prompts))
	m.bytes.WithLabelValues(model).Set(float64(bytes))
}

// checked counts a prompt whose tokens an engine has counted.
func (m *Metrics) checked(model string, api API, by Method, right bool) {
	if m != nil {
		m.checks.WithLabelValues(model, string(api), string(by), map[bool]string{true: "right", false: "wrong"}[right]).Inc()
	}
}
