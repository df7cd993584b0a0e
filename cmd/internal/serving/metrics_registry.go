package serving

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// modelLabel is the label of metrics that are kept by model.
const modelLabel = "model"

// keepModelFor is how long the series of a model stay that no server has any more: its counters go
// on where its servers return, and alerts see what became of its requests.
const keepModelFor = 24 * time.Hour

// mostGoneModels is of how many models that no server has any more series stay: adapters that are loaded under a new
// name each time would make them millions in a day.
const mostGoneModels = 500

// metricsRegistry is that of a node's metrics. Models come and go with what engines load, adapters above
// all, and each has some hundred series: it drops those of models that are gone for long, and of those that are gone
// for longest where they are many.
type metricsRegistry struct {
	*prometheus.Registry

	mu      sync.Mutex
	vectors []seriesByLabel
	models  map[string]time.Time // that series name, and when it was last known that servers have or had them
}

// seriesByLabel is a metric with labels.
type seriesByLabel interface {
	DeletePartialMatch(prometheus.Labels) int
}

func newMetricsRegistry() *metricsRegistry {
	return &metricsRegistry{Registry: prometheus.NewRegistry(), models: make(map[string]time.Time)}
}

// Register notes what has series by label.
func (r *metricsRegistry) Register(c prometheus.Collector) error {
	if v, ok := c.(seriesByLabel); ok {
		r.mu.Lock()
		r.vectors = append(r.vectors, v)
		r.mu.Unlock()
	}
	return r.Registry.Register(c)
}

// MustRegister is Register for what is known to fit.
func (r *metricsRegistry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// gather returns what is measured, and drops for the next time the series of models that are gone:
// not among those that are known since keepModelFor.
func (r *metricsRegistry) gather(known []string, now time.Time) ([]*dto.MetricFamily, error) {
	families, err := r.Gather()
	r.mu.Lock()
	defer r.mu.Unlock()
	for model := range modelsOf(families) {
		if _, noted := r.models[model]; !noted {
			r.models[model] = now
		}
	}
	for _, model := range known {
		r.models[model] = now
	}
	for _, model := range r.goneLocked(now) {
		delete(r.models, model)
		for _, v := range r.vectors {
			v.DeletePartialMatch(prometheus.Labels{modelLabel: model})
		}
	}
	return families, err
}

// goneLocked are the models whose series are to go: those that were last known keepModelFor ago, and the oldest
// beyond mostGoneModels.
func (r *metricsRegistry) goneLocked(now time.Time) []string {
	var gone []string
	for model, last := range r.models {
		if last.Before(now) {
			gone = append(gone, model)
		}
	}
	slices.SortFunc(gone, func(a, b string) int { return r.models[b].Compare(r.models[a]) })
	for i, model := range gone {
		if i == mostGoneModels || now.Sub(r.models[model]) >= keepModelFor {
			return gone[i:]
		}
	}
	return nil
}

// modelsOf are the models that series name.
func modelsOf(families []*dto.MetricFamily) map[string]bool {
	models := make(map[string]bool)
	for _, family := range families {
		for _, series := range family.GetMetric() {
			for _, label := range series.GetLabel() {
				if label.GetName() == modelLabel {
					models[label.GetValue()] = true
				}
			}
		}
	}
	return models
}
