// Package evaluate measures for Prometheus what became of choices: by how much their predictions were
// off, what transfers took, and what pairs saved against decode alone. It is given sizes, times and the
// terms of choices, and knows no server and no request under way.
package evaluate

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/series"
)

// Metrics are by model, which are bounded by the configuration.
type Metrics struct {
	ttftRatio     *series.Observers // model
	transferRatio *series.Observers // model
	outputRatio   *series.Observers // model
	outputTokens  *series.Counters  // model, what
	promptRatio   *series.Observers // model
	transfer      *series.Observers // model
	transferBytes *series.Counters  // model
	saved, lost   *series.Counters  // model, what
}

// What disaggregation saves seconds of.
const (
	prompts = "prompts" // their own time to the first token
	streams = "streams" // decoding, their own and that of others
)

var (
	timeRatioBuckets   = []float64{.1, .2, .33, .5, .67, .8, .9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10}
	promptRatioBuckets = []float64{.5, .7, .8, .9, .95, .98, 1, 1.02, 1.05, 1.1, 1.25, 1.5, 2}
	// Seconds; from a few blocks between neighbours to a long prompt over a crowded link.
	transferBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// New registers the metrics.
func New(reg prometheus.Registerer, kept histogram.Config) *Metrics {
	byModel := func(name, help string, buckets []float64) *series.Observers {
		return series.OfHistograms(kept.New(reg, name, help, buckets, "model"))
	}
	counter := func(name, help string, labels ...string) *series.Counters {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return series.OfCounters(c)
	}
	return &Metrics{
		ttftRatio: byModel("tandem_ttft_prediction_ratio",
			"Time from the choice of servers to the first content event as it was predicted, over what it took; streams that needed one attempt.",
			timeRatioBuckets),
		transferRatio: byModel("tandem_transfer_prediction_ratio",
			"Time from sending decode a hand-off to its first content event as it was predicted, for the transfer and a step, over what it took: "+
				"of the transfers in tandem_transfer_seconds.",
			timeRatioBuckets),
		outputRatio: byModel("tandem_output_prediction_ratio",
			"Output tokens that were predicted of a whole answer, over those that it had.",
			timeRatioBuckets),
		outputTokens: counter("tandem_output_prediction_tokens_total",
			"Output tokens of the answers in tandem_output_prediction_ratio, by what: predicted, counted. The one over the other is 1 where "+
				"predictions are right on the whole, however much single answers differ, of which short ones have high ratios.",
			"model", "what"),
		promptRatio: byModel("tandem_prompt_prediction_ratio",
			"Tokens of a prompt as they were known or predicted when its servers were chosen, for each that the engine counted.",
			promptRatioBuckets),
		transfer: byModel("tandem_transfer_seconds",
			"Time of KV transfers with their legs: from sending decode a hand-off to its first content event, less a step. "+
				"Streams on decode servers that had room and no prompts of their own; not where both legs run at once.",
			transferBuckets),
		transferBytes: counter("tandem_transfer_bytes_total", "Bytes of KV that the transfers in tandem_transfer_seconds moved, as predicted.", "model"),
		saved: counter("tandem_disaggregation_saved_seconds_total",
			"Seconds that requests with a pair saved against the cheapest decode server alone, by what: prompts (their time to the first token; "+
				"of answers in one body as predicted), streams (their decoding and the delay to others, as predicted and weighed by the choice). "+
				"tandem_disaggregation_lost_seconds_total is to be taken off.",
			"model", "what"),
		lost: counter("tandem_disaggregation_lost_seconds_total",
			"Seconds that requests with a pair lost against the cheapest decode server alone, by what, as tandem_disaggregation_saved_seconds_total.",
			"model", "what"),
	}
}

// ObserveTTFT compares a time from the choice to the first content event with what was predicted.
func (m *Metrics) ObserveTTFT(ctx context.Context, model string, predicted, took time.Duration) {
	observeRatio(ctx, m.ttftRatio.WithLabelValues(model), predicted, took)
}

// ObserveOutput compares the tokens of a whole answer with those that were predicted.
func (m *Metrics) ObserveOutput(model string, predicted, tokens int) {
	m.outputRatio.WithLabelValues(model).Observe(float64(predicted) / float64(max(1, tokens)))
	m.outputTokens.WithLabelValues(model, "predicted").Add(float64(predicted))
	m.outputTokens.WithLabelValues(model, "counted").Add(float64(tokens))
}

// ObservePrompt compares the tokens of a prompt with those that it was taken to have.
func (m *Metrics) ObservePrompt(model string, predicted, tokens int) {
	m.promptRatio.WithLabelValues(model).Observe(float64(predicted) / float64(max(1, tokens)))
}

// ObserveTransfer counts a transfer of so many bytes, with the time from sending decode its leg to the
// first content event, and compares it with the terms of its choice.
func (m *Metrics) ObserveTransfer(ctx context.Context, model string, predicted *cost.Terms, bytes float64, took time.Duration) {
	histogram.Observe(ctx, m.transfer.WithLabelValues(model), max(0, took-predicted.Step).Seconds())
	m.transferBytes.WithLabelValues(model).Add(bytes)
	observeRatio(ctx, m.transferRatio.WithLabelValues(model), predicted.Transfer+predicted.Step, took)
}

// ObservePair counts what a pair, whose first token came after so long, saved against decode alone.
func (m *Metrics) ObservePair(model string, pair, aggregated *cost.Terms, firstToken time.Duration) {
	m.observeSaving(model, prompts, aggregated.TTFT()-firstToken)
	m.observeSaving(model, streams, aggregated.DecodeCost+aggregated.DelayToOthers-pair.DecodeCost-pair.DelayToOthers)
}

func (m *Metrics) observeSaving(model, what string, saving time.Duration) {
	m.saved.WithLabelValues(model, what).Add(max(0, saving).Seconds())
	m.lost.WithLabelValues(model, what).Add(max(0, -saving).Seconds())
}

// observeRatio leaves out what took no time.
func observeRatio(ctx context.Context, to prometheus.Observer, predicted, took time.Duration) {
	if took > 0 {
		histogram.Observe(ctx, to, predicted.Seconds()/took.Seconds())
	}
}
