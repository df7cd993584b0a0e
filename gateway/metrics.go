package gateway

import "github.com/prometheus/client_golang/prometheus"

// Metrics are what the gateway counts of its clients. The model label holds only
// models that are served; others are "unknown".
type Metrics struct {
	requests *prometheus.CounterVec   // api, model, outcome
	duration *prometheus.HistogramVec // api, model, outcome
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_requests_total",
			Help: "Requests by outcome: ok, client_gone, bad_request and refused (4xx by the gateway, by an engine), quarantined, overloaded, displaced, deadline, no_server, timeout, error, broken_stream.",
		}, []string{"api", "model", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tandem_request_duration_seconds", Help: "Time from a request's arrival to the end of its answer.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"api", "model", "outcome"}),
	}
	reg.MustRegister(m.requests, m.duration)
	return m
}
