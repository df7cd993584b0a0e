package replicas

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	connectedDesc = prometheus.NewDesc("tandem_replicas_connected", "1 while this replica can share its work through Redis, else 0.", nil, nil)
	othersDesc    = prometheus.NewDesc("tandem_replicas_busy", "Other replicas that have work in flight.", nil, nil)
	messagesDesc  = prometheus.NewDesc("tandem_replica_messages_total",
		"Messages of other replicas about their work, read or ignored as unreadable.",
		[]string{"kind"}, nil)
)

// Describe and Collect make Exchange a Prometheus collector.
func (r *Exchange) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, othersDesc, messagesDesc} {
		ch <- d
	}
}

func (r *Exchange) Collect(ch chan<- prometheus.Metric) {
	connected := 0.0
	if r.connected.Load() {
		connected = 1
	}
	ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, connected)
	ch <- prometheus.MustNewConstMetric(othersDesc, prometheus.GaugeValue, float64(r.Busy(time.Now())))
	ch <- prometheus.MustNewConstMetric(messagesDesc, prometheus.CounterValue, float64(r.received.Load()), "read")
	ch <- prometheus.MustNewConstMetric(messagesDesc, prometheus.CounterValue, float64(r.ignored.Load()), "ignored")
}
