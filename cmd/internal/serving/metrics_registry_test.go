package serving

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The series of a model stay for a day after its last server, and while it has one.
func TestMetricsRegistry_ForgetsAModelADayAfterItsLastServer(t *testing.T) {
	r := newMetricsRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"outcome", "model"})
	times := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "times"}, []string{"model"})
	servers := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "servers"}, []string{"server"})
	r.MustRegister(requests, times, servers)
	for _, model := range []string{"stays", "goes", "never"} { // of one the gateway was not scraped while it was there
		requests.WithLabelValues("ok", model).Inc()
		times.WithLabelValues(model).Observe(1)
	}
	servers.WithLabelValues("a").Inc()
	at := time.Unix(1_700_000_000, 0)
	for _, x := range []struct {
		after time.Duration
		known []string
		want  []string // that are named by the next scrape
	}{
		{0, []string{"stays", "goes"}, []string{"goes", "never", "stays"}},
		{12 * time.Hour, []string{"stays", "goes"}, []string{"goes", "never", "stays"}},
		{12 * time.Hour, []string{"stays"}, []string{"goes", "stays"}},
		{12 * time.Hour, []string{"stays"}, []string{"stays"}},
		{1000 * time.Hour, []string{"stays"}, []string{"stays"}},
	} {
		at = at.Add(x.after)
		if _, err := r.gather(x.known, at); err != nil {
			t.Fatal(err)
		}
		next, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(modelsOf(next))); !slices.Equal(got, x.want) {
			t.Errorf("at %v with %v: %v, want %v", at, x.known, got, x.want)
		}
		if len(next) != 3 {
			t.Errorf("%d metrics, want those of servers too", len(next))
		}
	}
}
