package autoscale

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

var (
	poolLabels    = []string{"model", "role"}
	variantLabels = []string{"model", "role", "variant"}

	serversDesc = prometheus.NewDesc("tandem_pool_servers",
		"Servers of a pool, by kind of hardware and state (ready, pending; of the latter the kind is not known).",
		[]string{"model", "role", "variant", "state"}, nil)
	speedDesc = prometheus.NewDesc("tandem_server_speed_tokens_per_second",
		"What one server of a pool does at the lengths of now, within the objective, as learned; by kind of hardware.", variantLabels, nil)
	kvUsedDesc = prometheus.NewDesc("tandem_pool_kv_used_tokens",
		"Tokens whose KV a pool's servers hold, by kind of hardware.", variantLabels, nil)
	kvCapacityDesc = prometheus.NewDesc("tandem_pool_kv_capacity_tokens",
		"Tokens whose KV a pool's servers have room for, by kind of hardware. Absent where engines do not report it.", variantLabels, nil)
	variantBacklogDesc = prometheus.NewDesc("tandem_variant_backlog_seconds",
		"Time that servers of one kind of hardware need for what was sent to them: prefill servers for prompts that are not done, "+
			"decode servers for answers in their queues. What waits in gateways is in tandem_backlog_seconds.",
		variantLabels, nil)
	variantDemandDesc = prometheus.NewDesc("tandem_variant_demand_tokens_per_second",
		"Part of tandem_demand_tokens_per_second that a kind of hardware is to prefill, by the lengths that are planned for it. "+
			"Absent where hardware has no variants.",
		variantLabels, nil)
	kvQueuedDesc = prometheus.NewDesc("tandem_kv_queued_tokens",
		"KV that requests without a first token will hold on decode servers.", []string{"model"}, nil)
	demandDesc = prometheus.NewDesc("tandem_demand_tokens_per_second",
		"What clients of all gateways asked for in the last minute: prompt tokens to compute for prefill, predicted output tokens "+
			"for decode. What is held or was refused for lack of capacity is in it, retries and what quotas refuse are not.",
		poolLabels, nil)
	backlogDesc = prometheus.NewDesc("tandem_backlog_seconds",
		"Time that the pool's servers need for what waits: prompts, and answers that wait for room. Absent where there are none.",
		poolLabels, nil)
	waitingDesc = prometheus.NewDesc("tandem_pool_waiting_requests",
		"Requests that wait for the pool, in its engines (as vllm:num_requests_waiting) and in the gateways' queues.", poolLabels, nil)
	attainedDesc = prometheus.NewDesc("tandem_slo_attainment_ratio",
		"Share of the requests of the last five minutes that kept the objective for ttft, or for itl on their mean. Refused and "+
			"failed ones did not; a refused one and its retries are one. Absent without an objective or requests.",
		[]string{"model", "slo"}, nil)
	priceDesc = prometheus.NewDesc("tandem_capacity_price_per_hour",
		"What an hour would cost less with one more server's worth of a capacity (prefill, decode, kv, sequences, gpus), by kind of "+
			"hardware: what is short. Absent without hardware to choose from.",
		[]string{"model", "variant", "what"}, nil)
	coldStartDesc = prometheus.NewDesc("tandem_cold_start_seconds",
		"Time from wanting a server to its being ready, as seen.", []string{"model"}, nil)
)

// Describe is part of prometheus.Collector.
func (s *Scaler) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{serversDesc, speedDesc, kvUsedDesc, kvCapacityDesc, variantBacklogDesc, variantDemandDesc, kvQueuedDesc, demandDesc, backlogDesc, waitingDesc, attainedDesc, priceDesc, coldStartDesc} {
		ch <- d
	}
}

// gauges writes gauges.
type gauges chan<- prometheus.Metric

func (g gauges) set(d *prometheus.Desc, v float64, labels ...string) {
	g <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// Collect is part of prometheus.Collector. Of a model whose signals are old nothing is
// reported: no figure is better than an old one.
func (s *Scaler) Collect(ch chan<- prometheus.Metric) {
	for model, d := range s.current.Load().Models {
		if s.now().Sub(d.At) <= s.cfg.Planner.MaxAge {
			d.collect(gauges(ch), model)
		}
	}
}

func (d *Decision) collect(g gauges, model string) {
	in, state := &d.Signals, &d.State
	for _, pool := range []struct {
		role            pools.Role
		pool            sizing.Pool
		demand          sizing.Series
		backlog, speed  float64
		waitingRequests float64
	}{
		{pools.Prefill, in.Prefill, in.Prompt, in.PrefillBacklog, in.PrefillSpeed, state.PrefillWaiting},
		{pools.Decode, in.Decode, in.Output, in.DecodeBacklog, in.DecodeSpeed, state.DecodeWaiting},
	} {
		role := pool.role.String()
		g.set(serversDesc, float64(pool.pool.Pending), model, role, "", "pending")
		g.set(demandDesc, pool.demand.Last(sizing.RecentSpan).Mean(), model, role)
		g.set(waitingDesc, pool.waitingRequests, model, role)
		if pool.pool.Ready == 0 {
			g.set(serversDesc, 0, model, role, "", "ready")
		}
		if seconds, known := backlog(pool.backlog, pool.speed, pool.pool.Ready); known {
			g.set(backlogDesc, seconds, model, role)
		}
	}
	for i := range state.Hardware {
		k := &state.Hardware[i]
		role := k.Role.String()
		g.set(serversDesc, float64(k.Ready), model, role, k.Variant, "ready")
		g.set(speedDesc, k.Speed/float64(k.Ready), model, role, k.Variant)
		g.set(variantBacklogDesc, k.Backlog, model, role, k.Variant)
		g.set(kvUsedDesc, k.KVUsed, model, role, k.Variant)
		if k.KVTokens > 0 {
			g.set(kvCapacityDesc, k.KVTokens, model, role, k.Variant)
		}
	}
	if t := state.Shares; t != nil && len(t.Tokens) == len(t.Variants) { // it may be another version's
		demand := in.Prompt.Last(sizing.RecentSpan).Mean()
		for i, variant := range t.Variants {
			g.set(variantDemandDesc, t.Tokens[i]*demand, model, pools.Prefill.String(), variant)
		}
	}
	g.set(kvQueuedDesc, state.KVQueued, model)
	g.set(coldStartDesc, in.ColdStart.Seconds(), model)
	for _, p := range state.Prices {
		g.set(priceDesc, p.PerHour, model, p.Variant, p.What)
	}
	for slo, of := range map[string]demand.Attained{"ttft": state.TTFT, "itl": state.ITL} {
		if of.Judged > 0 {
			g.set(attainedDesc, float64(of.Met)/float64(of.Judged), model, slo)
		}
	}
}
