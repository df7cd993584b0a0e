package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/series"
)

// Metrics are what the gateway counts of its clients. The model label holds only
// models that are served; others are UnknownModel, and of what asks for no model it is NoModel. The tenant label holds as many tenants
// as are configured; others are "other".
type Metrics struct {
	requests *series.Counters  // api, model, outcome, path
	duration *series.Observers // api, model, outcome, path

	overloaded     *series.Counters // model, cause
	tenantRequests *series.Counters // tenant, class, outcome
	tenantTokens   *series.Counters // tenant, kind
	limited        *series.Counters // tenant, limit
	loops          prometheus.Counter
}

// Model labels that are none of a model: of requests for one that is not served, and of those that name none.
const (
	UnknownModel = "unknown"
	NoModel      = "none"
)

// How a request came.
const (
	overHTTP  = "http"
	forPicker = "picker"
)

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer, kept histogram.Config) *Metrics {
	counters := func(name, help string, labels ...string) *series.Counters {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		reg.MustRegister(c)
		return series.OfCounters(c)
	}
	m := &Metrics{
		requests: counters("tandem_requests_total",
			"Requests by outcome: ok, client_gone, unauthorized, limited (its key's limits), bad_request and refused (4xx by the "+
				"gateway, by an engine), quarantined, overloaded, displaced, deadline, no_server, stopped (this gateway ended before), timeout, error, broken_stream; and by path: http, or picker, where a proxy "+
				"asked which servers to take.",
			"api", "model", "outcome", "path"),
		duration: series.OfHistograms(kept.New(reg, "tandem_request_duration_seconds", "Time from a request's arrival to the end of its answer.",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}, "api", "model", "outcome", "path")),
		overloaded: counters("tandem_overloaded_requests_total",
			"Requests of the outcome overloaded, by cause: max_waiting (as many requests wait as that setting allows), max_wait (they waited longer than it, or would have), "+
				"max_held (bodies or answers take as many bytes), engines (all that were tried answered that they are busy), gateway (it has no descriptors left, or failed).",
			"model", "cause"),
		tenantRequests: counters("tandem_tenant_requests_total",
			"Requests of tenants, by priority class and outcome; tenants beyond tenant-labels are one, \"other\".",
			"tenant", "class", "outcome"),
		tenantTokens: counters("tandem_tenant_tokens_total",
			"Tokens of tenants' requests that were answered, as engines report them, by kind: prompt, output.",
			"tenant", "kind"),
		limited: counters("tandem_limited_requests_total",
			"Requests refused because a limit of their key was used up, by limit: requests, prompt_tokens, output_tokens, "+
				"concurrent_requests.",
			"tenant", "limit"),
		loops: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_loops_refused_total",
			Help: "Requests and probes refused since this gateway sent them itself, or one with the same servers did: an address of theirs is in their list of servers.",
		}),
	}
	reg.MustRegister(m.loops)
	return m
}

// countCause counts a refusal by what it was overloaded with, if it was.
func (m *Metrics) countCause(model string, f failure) {
	if f.cause != "" {
		m.overloaded.WithLabelValues(model, f.cause).Inc()
	}
}
