package series

import (
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// Each series is the metric's own, whether it is remembered or there are too many, and whoever asks at once.
func TestOf_CountsInTheMetricsOwnSeries(t *testing.T) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total"}, []string{"model", "outcome"})
	counters := OfCounters(v)
	const models, each = most + 4, 50
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for range each {
				for m := range models {
					counters.WithLabelValues(strconv.Itoa(m), "ok").Inc()
				}
			}
		})
	}
	asking.Wait()
	for m := range models {
		if n := testutil.ToFloat64(v.WithLabelValues(strconv.Itoa(m), "ok")); n != 4*each {
			t.Errorf("model %d: %v", m, n)
		}
	}
	if n := testutil.CollectAndCount(counters); n != models {
		t.Errorf("%d series", n)
	}
	if n := len(*counters.known.Load()); n != most {
		t.Errorf("%d are remembered", n)
	}
}

func TestOf_FindsWithoutAnAllocation(t *testing.T) {
	times := OfHistograms(prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "t_seconds"}, []string{"model"}))
	model := "m"
	if n := testing.AllocsPerRun(100, func() { times.WithLabelValues(model).Observe(1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestOf_PanicsWhereLabelsLackValues(t *testing.T) {
	counters := OfCounters(prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total"}, []string{"model", "outcome"}))
	counters.WithLabelValues("m", "ok")
	defer func() {
		if recover() == nil {
			t.Error("one value of two")
		}
	}()
	counters.WithLabelValues("m")
}

// BenchmarkOf is a series that is remembered, and one as client_golang finds it. Budget: 100 ns, and less than half of
// what the other takes.
func BenchmarkOf(b *testing.B) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total"}, []string{"api", "model", "outcome", "path"})
	counters := OfCounters(v)
	for name, with := range map[string]func(...string) prometheus.Counter{"remembered": counters.WithLabelValues, "looked up": v.WithLabelValues} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				with("chat", "m", "ok", "http")
			}
		})
	}
}
