package pd

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

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
