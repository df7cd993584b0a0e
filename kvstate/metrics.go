package kvstate

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	sourceLabels = []string{"server", "rank"}

	blocksDesc = prometheus.NewDesc("tandem_kv_blocks",
		"Blocks that the server is known to hold, by the tier that a prompt needs to be matched up to them. unreachable: behind a "+
			"block that is held no more.",
		[]string{"server", "rank", "tier"}, nil)
	eventsDesc = prometheus.NewDesc("tandem_kv_events_total",
		"KV events received from the server.", sourceLabels, nil)
	storedDesc = prometheus.NewDesc("tandem_kv_blocks_stored_total",
		"Blocks that KV events reported as stored.", sourceLabels, nil)
	removedDesc = prometheus.NewDesc("tandem_kv_blocks_removed_total",
		"Blocks that KV events reported as removed.", sourceLabels, nil)
	droppedDesc = prometheus.NewDesc("tandem_kv_events_dropped_total",
		"KV events, blocks of them, or whole messages that were left out. /debug/kv says why: unknown, malformed, tier, group, parent, "+
			"offload, removal, conflict, full; of messages misread and unreadable.",
		sourceLabels, nil)
	gapsDesc = prometheus.NewDesc("tandem_kv_gaps_total",
		"Gaps in the numbering of the server's KV event messages.", sourceLabels, nil)
	replaysDesc = prometheus.NewDesc("tandem_kv_replays_total",
		"Replays asked of the server, also to check that what is known is still true; failed: that broke off.",
		[]string{"server", "rank", "outcome"}, nil)
	resetsDesc = prometheus.NewDesc("tandem_kv_resets_total",
		"Times that all that the server was known to hold was forgotten. /debug/kv says why: gap, restart, disconnect, unreadable, rebuild.",
		sourceLabels, nil)
	lagDesc = prometheus.NewDesc("tandem_kv_lag_seconds",
		"Age of the last KV event message when it came, by the clocks of both sides. Absent when unknown.", sourceLabels, nil)
	silenceDesc = prometheus.NewDesc("tandem_kv_silence_seconds",
		"Time since the last KV event message.", sourceLabels, nil)
	completeDesc = prometheus.NewDesc("tandem_kv_complete",
		"1 if all that the server can replay is known, else 0. Always 0 without replay.", sourceLabels, nil)
	indexDesc = prometheus.NewDesc("tandem_kv_index_blocks",
		"Distinct blocks in the index by tier; guessed: believed for a short time since a request was sent.", []string{"model", "tier"}, nil)
	bytesDesc = prometheus.NewDesc("tandem_kv_index_bytes",
		"Memory of the index.", nil, nil)
	matchesDesc = prometheus.NewDesc("tandem_kv_lookups_total",
		"Prompts looked up in the index.", []string{"model"}, nil)
	knownDesc = prometheus.NewDesc("tandem_kv_known_tokens_total",
		"Tokens of the prompts looked up, as far as they were known then: of many only the beginning is.", []string{"model"}, nil)
	bestDesc = prometheus.NewDesc("tandem_kv_best_match_tokens_total",
		"Leading tokens of the prompts looked up that the best server held, by tier; slower tiers include faster ones.",
		[]string{"model", "tier"}, nil)
)

// Collector exposes the state of the index, read at the moment of the scrape.
func (ix *Index) Collector() prometheus.Collector { return collector{ix} }

type collector struct{ index *Index }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		blocksDesc, eventsDesc, storedDesc, removedDesc, droppedDesc, gapsDesc, replaysDesc, resetsDesc, lagDesc,
		silenceDesc, completeDesc, indexDesc, bytesDesc, matchesDesc, knownDesc, bestDesc,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	bytes := 0
	for _, s := range c.index.Sources() {
		s.collect(ch)
		for _, h := range s.Holders {
			bytes += h.Bytes
		}
	}
	for _, m := range c.index.Models() {
		m.collect(ch)
		bytes += m.Guesses.Bytes
		for _, tier := range m.Tiers {
			bytes += tier.Bytes
		}
	}
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(bytes))
}

func (s SourceState) collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{s.Server, s.rank()}, labels...)...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		put(d, prometheus.CounterValue, float64(v), labels...)
	}
	var gpu, cpu, disk, unreachable int
	for _, h := range s.Holders {
		gpu, cpu, disk, unreachable = gpu+h.GPU, cpu+h.CPU, disk+h.Disk, unreachable+h.Unreachable
	}
	for tier, n := range map[string]int{"gpu": gpu, "cpu": cpu, "disk": disk, "unreachable": unreachable} {
		put(blocksDesc, prometheus.GaugeValue, float64(n), tier)
	}
	n := &s.Counts
	count(eventsDesc, n.Events)
	count(storedDesc, n.Stored)
	count(removedDesc, n.Removed)
	count(droppedDesc, sum(n.DropReasons()))
	count(gapsDesc, n.Gaps)
	count(replaysDesc, n.Replays-n.ReplaysFailed, "done")
	count(replaysDesc, n.ReplaysFailed, "failed")
	count(resetsDesc, sum(n.ResetReasons()))
	if !math.IsNaN(n.EngineLag) {
		put(lagDesc, prometheus.GaugeValue, n.EngineLag)
	}
	if !n.LastBatch.IsZero() {
		put(silenceDesc, prometheus.GaugeValue, time.Since(n.LastBatch).Seconds())
	}
	put(completeDesc, prometheus.GaugeValue, float64(oneIf(s.Complete)))
}

func (m ModelState) collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{m.Model}, labels...)...)
	}
	for t := GPU; t < tiers; t++ {
		put(indexDesc, prometheus.GaugeValue, float64(m.Tiers[t].Blocks), t.String())
		put(bestDesc, prometheus.CounterValue, float64(m.Best[t]), t.String())
	}
	put(indexDesc, prometheus.GaugeValue, float64(m.Guesses.Blocks), "guessed")
	put(matchesDesc, prometheus.CounterValue, float64(m.Matches))
	put(knownDesc, prometheus.CounterValue, float64(m.Tokens))
}
