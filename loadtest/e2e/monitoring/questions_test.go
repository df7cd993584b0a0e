package monitoring

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

// question is what an operator wants to know, as Prometheus is asked for it.
type question struct {
	about, query string
	series       int // at least
	from, to     float64
}

// questions are about two pairs that serve short prompts, answers of 8 tokens and an adapter that is
// loaded once on each server.
var questions = []question{
	{"how long transfers take", `sum by (model) (rate(tandem_transfer_seconds_sum[30s])) / sum by (model) (rate(tandem_transfer_seconds_count[30s]))`, 2, 0, 2}, // of so little KV no time that can be told from a step, on a quiet machine
	{"what they move", `sum by (model) (rate(tandem_transfer_bytes_total[30s]))`, 2, 1, 1e12},
	{"whether disaggregation pays", `sum by (model, what) (tandem_disaggregation_saved_seconds_total) - sum by (model, what) (tandem_disaggregation_lost_seconds_total)`, 4, -1e4, 1e4},
	{"that something is compared at all", `sum by (what) (tandem_disaggregation_saved_seconds_total + tandem_disaggregation_lost_seconds_total)`, 2, 1e-6, 1e4},
	{"whether times to first tokens are predicted right", `sum(rate(tandem_ttft_prediction_ratio_sum[30s])) / sum(rate(tandem_ttft_prediction_ratio_count[30s]))`, 1, .02, 50},
	{"whether transfers are", `sum(rate(tandem_transfer_prediction_ratio_sum[30s])) / sum(rate(tandem_transfer_prediction_ratio_count[30s]))`, 1, .02, 50},
	{"whether lengths of answers are", `sum(rate(tandem_output_prediction_tokens_total{model="demo",what="predicted"}[30s])) / sum(rate(tandem_output_prediction_tokens_total{model="demo",what="counted"}[30s]))`, 1, .8, 1.25},
	{"which part of the first token's time goes to which role", `sum by (model, role) (sum by (server) (rate(tandem_server_prefill_seconds_sum[30s])) * on (server) group_right () group by (server, model, role, rack) (tandem_server_info))`, 1, 1e-6, 10},
	{"what engines found cached", `sum(rate(tandem_cached_prompt_tokens_total[30s])) / sum(rate(tandem_prompt_tokens_total[30s]))`, 1, .01, 1},
	{"how often an adapter was there", `sum(rate(tandem_adapter_requests_total{outcome="hit"}[30s])) / sum(rate(tandem_adapter_requests_total[30s]))`, 1, .5, 1},
	{"whether one had to be loaded for each request that missed it", `sum(tandem_adapter_requests_total{outcome="miss"}) - sum(tandem_adapter_loads_total{outcome="loaded"})`, 1, 0, 0},
	{"how long loading one takes", `sum(tandem_adapter_load_seconds_sum) / sum(tandem_adapter_load_seconds_count)`, 1, 1e-6, 60},
	{"how often engines are asked for the tokens of prompts", `sum(tandem_tokenize_calls_total)`, 1, 1, 1e6},
	{"that none of these counts as a request", `sum(tandem_requests_total) - sum(tandem_requests_total{api="completions"})`, 1, 0, 0},
	{"how many series a server has", `max(count by (server) ({__name__=~"tandem_.*",server!=""}))`, 1, 10, 40},
}

// Each question of an operator has an answer, and a plausible one.
func TestQuestions_HaveAnswers(t *testing.T) {
	promtool(t)
	g := startGateway(t)
	p, native := startPrometheus(t, g.admin, "exemplar-storage"), startPrometheus(t, g.admin, "native-histograms")
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	load.Go(func() { g.load(ctx) })

	until := time.Now().Add(2 * time.Minute)
	for _, q := range questions {
		p.answers(t, q, until)
	}
	native.answers(t, question{
		"the median without fixed buckets", `histogram_quantile(0.5, sum by (model) (rate(tandem_ttft_seconds[30s])))`, 2, 1e-6, 10}, until)
}

// answers fails the test where a question has no answer within its bounds by then.
func (p prometheus) answers(t *testing.T, q question, by time.Time) {
	t.Helper()
	for {
		got := p.numbers(t, q.query)
		if len(got) >= q.series && slices.Min(got) >= q.from && slices.Max(got) <= q.to {
			t.Logf("%s: %v, %v before the end", q.about, got, time.Until(by).Round(time.Second))
			return
		}
		if time.Now().After(by) {
			t.Errorf("%s: %v, want %d numbers from %v to %v of %s", q.about, got, q.series, q.from, q.to, q.query)
			return
		}
		time.Sleep(500 * time.Millisecond) // between two scrapes
	}
}
