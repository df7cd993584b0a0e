package serving

import (
	"fmt"
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

// Adapters that come under a new name each time leave the series of so many of them, the newest, whatever the time.
func TestMetricsRegistry_KeepsSoManyModelsThatAreGone(t *testing.T) {
	r := newMetricsRegistry()
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"model"})
	r.MustRegister(requests)
	at := time.Unix(1_700_000_000, 0)
	const adapters = mostGoneModels + 100
	for i := range adapters {
		at = at.Add(time.Second)
		adapter := fmt.Sprintf("adapter-%d", i)
		requests.WithLabelValues(adapter).Inc()
		requests.WithLabelValues("stays").Inc()
		if _, err := r.gather([]string{"stays", adapter}, at); err != nil {
			t.Fatal(err)
		}
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	left := modelsOf(families)
	if want := mostGoneModels + 2; len(left) != want { // the newest is not gone
		t.Errorf("%d models, want %d", len(left), want)
	}
	for model, want := range map[string]bool{"stays": true, "adapter-0": false, fmt.Sprintf("adapter-%d", adapters-1): true, fmt.Sprintf("adapter-%d", adapters-mostGoneModels): true} {
		if left[model] != want {
			t.Errorf("%s: %v, want %v", model, left[model], want)
		}
	}
}
