// Package histogram is how pd and gateway keep times and ratios for Prometheus: with fixed buckets,
// on request with native ones too, and with the trace of a request as exemplar. It knows no metric;
// they stand beside what they measure.
package histogram

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Config is how all histograms are kept. Its zero value keeps fixed buckets only.
type Config struct {
	// Native adds native histograms (Prometheus 2.40 and later with native-histograms), which a
	// scraper gets that asks for the protobuf format. Others see no difference.
	Native bool
}

// How fine native histograms are, and what they may take.
const (
	bucketFactor = 1.1 // between the bounds of neighbouring buckets
	maxBuckets   = 100
	minReset     = time.Hour // between two times that all is forgotten because buckets ran out
)

// New registers a histogram with the upper bounds of its fixed buckets.
func (c Config) New(reg prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	if c.Native {
		opts.NativeHistogramBucketFactor, opts.NativeHistogramMaxBucketNumber, opts.NativeHistogramMinResetDuration = bucketFactor, maxBuckets, minReset
	}
	h := prometheus.NewHistogramVec(opts, labels)
	reg.MustRegister(h)
	return h
}

// Observe adds a value, with the trace of the request that ctx belongs to as exemplar where that
// trace is sent to a collector.
func Observe(ctx context.Context, to prometheus.Observer, value float64) {
	ObserveIn(trace.SpanContextFromContext(ctx), to, value)
}

// ObserveIn does so where the request's span is at hand.
func ObserveIn(span trace.SpanContext, to prometheus.Observer, value float64) {
	if span.IsSampled() {
		if traced, ok := to.(prometheus.ExemplarObserver); ok {
			traced.ObserveWithExemplar(value, prometheus.Labels{"trace_id": span.TraceID().String()})
			return
		}
	}
	to.Observe(value)
}
