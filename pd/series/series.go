// Package series finds the series of a metric that were asked for before without hashing and checking
// the values of their labels again, as client_golang does each time: some 450 instructions, fourteen
// times a request. For metrics whose series are never deleted: one that is goes on being counted in
// vain.
package series

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// most is how many series of a metric are remembered: the first that were asked for. Others are looked up
// each time. A few models with a few outcomes each are fewer, and a list of them is read in no time.
const most = 16

// Of is a metric by the values of its labels.
type Of[S any] struct {
	prometheus.Collector
	lookUp func(values ...string) S
	known  atomic.Pointer[[]known[S]] // never changed: a new one takes its place
}

type known[S any] struct {
	values []string
	series S
}

// Counters are counters by labels.
type Counters = Of[prometheus.Counter]

// Observers are histograms by labels.
type Observers = Of[prometheus.Observer]

// OfCounters returns the series of a metric.
func OfCounters(v *prometheus.CounterVec) *Counters {
	return &Counters{Collector: v, lookUp: v.WithLabelValues}
}

// OfHistograms does so for histograms.
func OfHistograms(v *prometheus.HistogramVec) *Observers {
	return &Observers{Collector: v, lookUp: v.WithLabelValues}
}

// WithLabelValues returns a series, as the metric's own method of that name does. It panics if there are
// more or fewer values than labels.
func (o *Of[S]) WithLabelValues(values ...string) S {
	var list []known[S]
	if all := o.known.Load(); all != nil {
		list = *all
	}
	for i := range list {
		if slices.Equal(list[i].values, values) {
			return list[i].series
		}
	}
	return o.remember(list, slices.Clone(values)) // values stay on the caller's stack
}

// remember looks a series up. Of two that are remembered at once one is looked up again next time.
func (o *Of[S]) remember(list []known[S], values []string) S {
	s := o.lookUp(values...)
	if len(list) < most {
		longer := append(slices.Clone(list), known[S]{values, s})
		o.known.Store(&longer)
	}
	return s
}
