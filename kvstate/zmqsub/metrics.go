package zmqsub

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

var connectedDesc = prometheus.NewDesc("tandem_kv_connected",
	"1 if the server's KV event socket is connected, else 0.", []string{"server", "rank"}, nil)

// Collector exposes which subscribers are connected, read at the moment of the scrape.
func (h *Hub) Collector() prometheus.Collector { return collector{h} }

type collector struct{ hub *Hub }

func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- connectedDesc }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	for s := range c.hub.subscribers {
		v := 0.0
		if s.Connected() {
			v = 1
		}
		id := s.source.ID()
		ch <- prometheus.MustNewConstMetric(connectedDesc, prometheus.GaugeValue, v, id.Server, strconv.Itoa(id.Rank))
	}
}
