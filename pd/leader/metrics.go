package leader

import "github.com/prometheus/client_golang/prometheus"

// Metrics of following and of being followed.
type Metrics struct {
	follows   prometheus.Gauge
	followers prometheus.Gauge
	turns     prometheus.Counter
	fallbacks prometheus.Counter
	silence   prometheus.Histogram
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		follows: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_leader_followed", Help: "1 while another replica decides about this one's requests, else 0.",
		}),
		followers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tandem_leader_followers", Help: "Replicas that this one decides for.",
		}),
		turns: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_leader_remote_requests_total", Help: "Requests of other replicas that this one has decided about.",
		}),
		fallbacks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_leader_fallbacks_total", Help: "Waiting requests that were bound by this replica itself because the leader was lost.",
		}),
		silence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tandem_leader_silence_seconds", Help: "For how long a leader had sent nothing when it was given up while requests waited for it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		}),
	}
	reg.MustRegister(m.follows, m.followers, m.turns, m.fallbacks, m.silence)
	return m
}
