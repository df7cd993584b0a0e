package keda

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	desiredDesc = prometheus.NewDesc("tandem_desired_replicas",
		"Servers that the pool should have. Absent when unknown or stale.", []string{"model", "role"}, nil)
	desiredVariantDesc = prometheus.NewDesc("tandem_desired_variant_replicas",
		"Of these, servers of one kind of hardware, where it is chosen. Absent when unknown or stale.", []string{"model", "role", "variant"}, nil)
	sizeDesc = prometheus.NewDesc("tandem_desired_engine_ranks",
		"Data-parallel ranks that each engine of the pool should have, where they grow in place.", []string{"model", "role"}, nil)
	heldDesc = prometheus.NewDesc("tandem_pool_waiting_for_capacity_requests",
		"Requests that wait because the pool has no server.", []string{"model", "role"}, nil)
	decisionDesc = prometheus.NewDesc("tandem_scaling_decision",
		"1 for what decided about the pool's desired replicas.", []string{"model", "role", "reason"}, nil)
	ageDesc = prometheus.NewDesc("tandem_scaling_signal_age_seconds",
		"Age of the oldest figure behind the pool's desired replicas. It goes on growing while these are absent because it is old.", []string{"model", "role"}, nil)
)

// Describe is of prometheus.Collector.
func (t *PublishedTargets) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{desiredDesc, desiredVariantDesc, sizeDesc, heldDesc, decisionDesc, ageDesc} {
		ch <- d
	}
}

// Collect is of prometheus.Collector.
func (t *PublishedTargets) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for p, r := range t.all() {
		age := now.Sub(r.At)
		if p.Variant == "" {
			gauge(ageDesc, age.Seconds(), p.Model, p.Role)
		}
		if age > t.maxAge {
			continue
		}
		if p.Variant != "" {
			gauge(desiredVariantDesc, float64(r.Replicas), p.Model, p.Role, p.Variant)
			continue
		}
		gauge(desiredDesc, float64(r.Replicas), p.Model, p.Role)
		if r.Size > 0 {
			gauge(sizeDesc, float64(r.Size), p.Model, p.Role)
		}
		gauge(heldDesc, float64(r.WaitingForCapacity), p.Model, p.Role)
		gauge(decisionDesc, 1, p.Model, p.Role, r.Reason)
	}
}
