package replicate

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/kvstate"
)

var (
	sharedUpDesc     = prometheus.NewDesc("tandem_kv_shared", "1 while what is known of KV can be kept in Redis, else 0 (degraded: routing goes on from memory); 0 also until Redis has first answered. Without sources of KV events only reading is tried.", nil, nil)
	receivingDesc    = prometheus.NewDesc("tandem_kv_receiving", "1 for each engine in connect mode whose events this replica receives for all.", []string{"server", "rank"}, nil)
	sharedEventsDesc = prometheus.NewDesc("tandem_kv_snapshots_total", "Snapshots of sources: restored from Redis, written to it, and calls of Redis that failed.", []string{"what"}, nil)
)

// Describe and Collect make Shared a Prometheus collector.
func (sh *Shared) Describe(ch chan<- *prometheus.Desc) {
	ch <- sharedUpDesc
	ch <- sharedEventsDesc
	ch <- receivingDesc
}

func (sh *Shared) Collect(ch chan<- prometheus.Metric) {
	up := 0.0
	if sh.answered.Load() && !sh.down.Load() && !sh.silent.Load() {
		up = 1
	}
	ch <- prometheus.MustNewConstMetric(sharedUpDesc, prometheus.GaugeValue, up)
	sh.receiving.Range(func(id, _ any) bool {
		source := id.(kvstate.SourceID) //nolint:forcetypeassert // nothing else is stored
		ch <- prometheus.MustNewConstMetric(receivingDesc, prometheus.GaugeValue, 1, source.Server, strconv.Itoa(source.Rank))
		return true
	})
	for what, n := range map[string]uint64{"restored": sh.restored.Load(), "written": sh.written.Load(), "failed": sh.failed.Load()} {
		ch <- prometheus.MustNewConstMetric(sharedEventsDesc, prometheus.CounterValue, float64(n), what)
	}
}
