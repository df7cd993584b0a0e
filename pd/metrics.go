package pd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-gateway/tandem/kvstate"
	"github.com/tandem-gateway/tandem/kvstate/tokens"
	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/connector"
	"github.com/tandem-gateway/tandem/pd/evaluate"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pd/series"
)

// Metrics are what pd measures. Labels are bounded by the configuration:
// servers, models that a server serves, and fixed words.
type Metrics struct {
	wait              *series.Observers // model
	ttft              *series.Observers // model
	gap               *series.Observers
	prefill           histogram.ByServer
	firstEvent        histogram.ByServer
	itl               histogram.ByServer
	retries           *series.Counters       // leg, reason
	aggregated        *series.Counters       // reason
	unknown           *series.Counters       // model, reason
	missing           *prometheus.CounterVec // server
	foreign           *prometheus.CounterVec // server
	recomputes        *prometheus.CounterVec // server
	mismatches        *prometheus.CounterVec // server
	stranded          *prometheus.CounterVec // server
	retained          *prometheus.CounterVec // server
	answerKV          *series.Counters       // outcome
	exhausted         prometheus.Counter
	unresponsiveWaits *series.Counters // role
	evaluations       prometheus.Counter
	promptToks        *series.Counters // model
	outputToks        *series.Counters // model
	cachedToks        *series.Counters // model
	heldToks          *series.Counters // model, tier
	// lookedUpToks are those that heldToks are a part of.
	lookedUpToks  *series.Counters       // model
	brokenAfter   *prometheus.CounterVec // server
	continuations *series.Counters       // outcome
	firstTokens   *series.Counters       // use, reason
	pieces        *series.Counters       // outcome
	fetches       *series.Counters       // outcome
	fetchedToks   prometheus.Counter

	choices *evaluate.Metrics // what became of them

	byServer []seriesByServer // those above with a label for the server
}

var (
	// Seconds; from a cached short prompt to a long one in a queue.
	phaseBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	itlBuckets   = []float64{.001, .0025, .005, .01, .015, .02, .03, .04, .05, .075, .1, .15, .2, .5, 1, 5}
)

// NewMetrics registers the metrics of pd, its queue and its quarantine.
func NewMetrics(reg prometheus.Registerer, kept histogram.Config, queue *queue.Queue, suspects *retry.Quarantine) *Metrics {
	var byServer []seriesByServer
	distribution := func(name, help string, buckets []float64, labels ...string) *series.Observers {
		return series.OfHistograms(kept.New(reg, name, help, buckets, labels...))
	}
	times := func(name, help string, buckets []float64) histogram.ByServer {
		t := kept.NewByServer(reg, name, help, buckets)
		byServer = append(byServer, t.Mean)
		return t
	}
	counters := func(name, help string, labels ...string) *series.Counters {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return series.OfCounters(c)
	}
	countersByServer := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{serverLabel})
		reg.MustRegister(c)
		byServer = append(byServer, c)
		return c
	}
	m := &Metrics{
		choices: evaluate.New(reg, kept),
		wait: distribution("tandem_wait_seconds",
			"Time in the gateway's queue: until a request has its servers, where it is bound late.",
			phaseBuckets, "model"),
		ttft: distribution("tandem_ttft_seconds",
			"Time from the request's arrival to its first content event; streams only.",
			phaseBuckets, "model"),
		prefill: times("tandem_prefill_seconds", "Time of prefill legs that succeeded.", phaseBuckets),
		firstEvent: times("tandem_decode_first_event_seconds",
			"Time from sending decode to its first content event: transfer, room and a step; streams only.", phaseBuckets),
		itl: times("tandem_itl_seconds", "Gaps between content events of a stream.", itlBuckets),
		gap: distribution("tandem_handoff_gap_seconds", "Time from the end of prefill to the dispatch of decode.",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .05, .1, .5, 1, 5, 10}),
		retries: counters("tandem_retries_total", "Legs tried again elsewhere, by the leg that failed and why.", "leg", "reason"),
		aggregated: counters("tandem_aggregated_requests_total",
			"Requests that decode ran alone, by reason: aggregated, cheaper, no_prefill (no server but the one that decodes), "+
				"no_pair (prefill servers that make no pair with a decode server), fallback.",
			"reason"),
		unknown: counters("tandem_tokens_unknown_total",
			"Requests of whose prompts no tokens were known, so that what servers hold of them was not looked up, by reason: "+
				tokens.ListReasons()+". docs/explain.md says what each means.",
			"model", "reason"),
		missing: countersByServer("tandem_handoffs_missing_total",
			"Prefills that answered without a hand-off; decode then computes the prompt."),
		foreign: countersByServer("tandem_handoffs_external_total",
			"Hand-offs that name a host which is neither the prefill server's nor that of its kv-address; with strict-handoffs also those "+
				"with a host of which that is not known yet, and all of them "+
				"are withheld from decode."),
		retained: countersByServer("tandem_handoffs_retained_total",
			"Answers of decode with a hand-off of its own, whose blocks the engine pins for 480 s although no server fetches them."),
		answerKV: counters("tandem_answer_kv_total",
			"KV of answers that decode keeps for the next turn's prefill, by what became of it: kept, read, late (gone when it was to be "+
				"read), computed (prefill was to read it and computed the tokens), failed (likewise, after an error or silence).",
			"outcome"),
		recomputes: countersByServer("tandem_silent_recomputes_total",
			"Decodes that were given a hand-off and computed the prompt all the same."),
		mismatches: countersByServer("tandem_prompt_mismatches_total",
			"Prompts that decode tokenises differently from prefill: do both servers have the same chat template and tokenizer?"),
		stranded: countersByServer("tandem_handoffs_stranded_total",
			"Hand-offs that no decode picked up; the prefill server frees them when its lease ends."),
		promptToks: counters("tandem_prompt_tokens_total", "Prompt tokens, as engines report them.", "model"),
		outputToks: counters("tandem_output_tokens_total", "Output tokens, as engines report them; content events where they do not.", "model"),
		cachedToks: counters("tandem_cached_prompt_tokens_total",
			"Prompt tokens that were in the cache of the server that prefilled, as it reports them.",
			"model"),
		heldToks: counters("tandem_kv_hit_tokens_total",
			"Prompt tokens that the server which computed the prompt was known to hold when it was chosen, by the tier that it has them "+
				"in. Of tandem_kv_prompt_tokens_total they are the part that caches were believed to save; what engines report is "+
				"tandem_cached_prompt_tokens_total.",
			"model", "tier"),
		lookedUpToks: counters("tandem_kv_prompt_tokens_total",
			"Tokens of the prompts that were computed and whose caches were looked for, as engines report them.", "model"),
		unresponsiveWaits: counters("tandem_unresponsive_waits_total",
			"Requests that waited because all servers of a role were unresponsive, or not probed yet, by role.", "role"),
		brokenAfter: countersByServer("tandem_streams_broken_total", "Streams that broke after their first content event, by decode server."),
		continuations: counters("tandem_continuations_total",
			"Streams that broke, by what became of them: continued, ended (the answer was whole, only the end marker was missing), "+
				"failed, refused (the request or the engine does not allow it), no_budget.",
			"outcome"),
		firstTokens: counters("tandem_first_tokens_total",
			"Prefill legs by what became of their token (use): first (the client got it, and decode went on behind it), all (it was the whole "+
				"answer), redrawn (decode said the same one), unused; and why (reason, docs/engines.md).",
			"use", "reason"),
		fetches: counters("tandem_kv_fetches_total",
			"Times that prefill was to fetch the KV of a prompt's beginning from a decode server, by outcome: fetched, recomputed (likewise, but decode had lost some "+
				"and computed it), not_fetched (a leg failed, or took too long: prefill computes it), met "+
				"(one block, of two servers that had exchanged no KV before, beside a request that computes its prompt), not_met (the same failed).", "outcome"),
		fetchedToks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_kv_fetched_tokens_total", Help: "Tokens of prompts whose KV prefill fetched from decode servers, since it lacked them.",
		}),
		pieces: counters("tandem_prefill_pieces_total",
			"Pieces of long prompts by outcome: pulled (decode has it), not_pulled (decode pulls it with the whole prompt), kept (prefill still had "+
				"it when the next one came), lost (it was evicted, or the engine does not say what it had), on_decode (a decode server computed it, which serves the request alone).",
			"outcome"),
		exhausted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_retry_budget_exhausted_total", Help: "Retries not made because the budget was spent.",
		}),
		evaluations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_queue_evaluations_total", Help: "How often the requests that wait for their servers were looked at, to see which has its turn.",
		}),
	}
	m.byServer = byServer
	reg.MustRegister(m.exhausted, m.evaluations, m.fetchedToks,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_quarantined_requests",
			Help: "Requests that are refused because they were in flight on two servers when they died."},
			func() float64 { return float64(suspects.Quarantined(time.Now())) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_waiting_requests",
			Help: "Requests in the gateway's queue, for a place or for their servers."},
			func() float64 { waiting, _ := queue.Len(); return float64(waiting) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tandem_in_flight_requests",
			Help: "Requests that have their servers, to the end of their streams."},
			func() float64 { _, inFlight := queue.Len(); return float64(inFlight) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tandem_displaced_requests_total",
			Help: "Requests that waited and gave way to one of a higher class, or of a tenant with fewer: their place in a full queue, " +
				"or their turn."},
			func() float64 { return float64(queue.Displaced()) }))
	return m
}

// serverLabel is the label of metrics that are kept by server.
const serverLabel = "server"

// Keep drops the series of servers that keep says no to. It is called before each
// scrape: servers come and go, and their series would stay for ever. What still runs on
// a server that is gone may bring its series back until the next call.
func (m *Metrics) Keep(keep func(server string) bool) {
	for _, v := range m.byServer {
		for server := range serversOf(v) {
			if !keep(server) {
				v.DeletePartialMatch(prometheus.Labels{serverLabel: server})
			}
		}
	}
}

// seriesByServer is a metric with a label for the server.
type seriesByServer interface {
	prometheus.Collector
	DeletePartialMatch(prometheus.Labels) int
}

// serversOf are the servers that a metric has series of.
func serversOf(v prometheus.Collector) map[string]bool {
	series := make(chan prometheus.Metric)
	go func() {
		defer close(series)
		v.Collect(series)
	}()
	servers := make(map[string]bool)
	for s := range series {
		var out dto.Metric
		if s.Write(&out) != nil {
			continue // a scrape reports it
		}
		for _, l := range out.GetLabel() {
			if l.GetName() == serverLabel {
				servers[l.GetValue()] = true
			}
		}
	}
	return servers
}

// countHits counts a prompt that was computed, and what was known to be held of it. Both are
// counted here, when an engine has reported how long it was: often only its beginning is known
// before, which of all parts is the one that caches hold.
func (m *Metrics) countHits(st *requestState, prompt api.Count) {
	if st.bind.prefix == nil || !prompt.Known {
		return
	}
	m.lookedUpToks.WithLabelValues(st.req.Model).Add(float64(prompt.Tokens))
	if st.bind.prefix.isGuessed() {
		return // what is guessed is no hit
	}
	counted := 0
	for _, tier := range []kvstate.Tier{kvstate.GPU, kvstate.CPU, kvstate.Disk} {
		if held := min(tier.Of(st.hits.held), prompt.Tokens); held > counted {
			m.heldToks.WithLabelValues(st.req.Model, tier.String()).Add(float64(held - counted))
			counted = held
		}
	}
}

func (m *Metrics) countTokens(st *requestState, u api.Usage, events int) {
	req := st.req
	m.countHits(st, u.Prompt)
	m.promptToks.WithLabelValues(req.Model).Add(float64(u.Prompt.Tokens))
	m.outputToks.WithLabelValues(req.Model).Add(float64(outputTokens(u, events)))
	m.cachedToks.WithLabelValues(req.Model).Add(float64(u.Cached.Tokens))
}

// outputTokens are those of an answer, as the engine counts them, or else its content events.
func outputTokens(u api.Usage, events int) int {
	if u.Output.Known {
		return u.Output.Tokens
	}
	return events
}

// countUnknown counts a request of whose prompt no tokens are known, for a reason; "" is none.
func (m *Metrics) countUnknown(model string, why tokens.Reason) {
	if why != "" {
		m.unknown.WithLabelValues(model, string(why)).Inc()
	}
}

// countStranded counts a hand-off that surely no server reads any more.
func (m *Metrics) countStranded(h *connector.Handoff) {
	if h.HasKV() {
		m.stranded.WithLabelValues(h.From.ID()).Inc()
	}
}
