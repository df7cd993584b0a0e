package autoscale

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pools"
)

var (
	readyDesc = prometheus.NewDesc("tandem_pool_servers",
		"Servers of a pool, by state (ready, pending).", []string{"model", "role", "state"}, nil)
	demandDesc = prometheus.NewDesc("tandem_demand_tokens_per_second",
		"What clients of all gateways asked for in the last minute: prompt tokens to compute for prefill, predicted output tokens for decode.", []string{"model", "role"}, nil)
	speedDesc = prometheus.NewDesc("tandem_server_speed_tokens_per_second",
		"What one server of a pool does at the lengths of now, within the objective.", []string{"model", "role"}, nil)
	backlogDesc = prometheus.NewDesc("tandem_prefill_backlog_tokens",
		"Prompt tokens that wait for a prefill server.", []string{"model"}, nil)
	coldStartDesc = prometheus.NewDesc("tandem_cold_start_seconds",
		"Time from wanting a server to its being ready, as seen.", []string{"model"}, nil)
)

// Describe is part of prometheus.Collector.
func (s *Scaler) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{readyDesc, demandDesc, speedDesc, backlogDesc, coldStartDesc} {
		ch <- d
	}
}

// Collect is part of prometheus.Collector.
func (s *Scaler) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	p := s.current.Load()
	for model, d := range p.Models {
		if s.now().Sub(d.At) > s.cfg.Planner.MaxAge {
			continue // no figure is better than an old one
		}
		in := &d.Signals
		gauge(backlogDesc, in.PrefillBacklog, model)
		gauge(coldStartDesc, in.ColdStart.Seconds(), model)
		for _, pool := range []struct {
			role   pools.Role
			state  Pool
			demand Series
			speed  float64
		}{{pools.Prefill, in.Prefill, in.Prompt, in.PrefillSpeed}, {pools.Decode, in.Decode, in.Output, in.DecodeSpeed}} {
			role := pool.role.String()
			gauge(readyDesc, float64(pool.state.Ready), model, role, "ready")
			gauge(readyDesc, float64(pool.state.Pending), model, role, "pending")
			gauge(demandDesc, pool.demand.Last(recentSpan).Mean(), model, role)
			gauge(speedDesc, pool.speed, model, role)
		}
	}
}
