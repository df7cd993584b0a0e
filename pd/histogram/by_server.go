package histogram

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pd/series"
)

// ByServer are times that servers take: how they are distributed by model, and by server only their
// sum and number. Buckets of each server would be most of what a large fleet exposes.
type ByServer struct {
	Mean         *prometheus.SummaryVec // server
	distribution *series.Observers      // model
}

// NewByServer registers both, tandem_NAME by model and tandem_server_NAME by server.
func (c Config) NewByServer(reg prometheus.Registerer, name, help string, buckets []float64) ByServer {
	mean := prometheus.NewSummaryVec(prometheus.SummaryOpts{
		Name: strings.Replace(name, "tandem_", "tandem_server_", 1), Help: "Sum and number of " + name + " by server.",
	}, []string{"server"})
	reg.MustRegister(mean)
	return ByServer{mean, series.OfHistograms(c.New(reg, name, help, buckets, "model"))}
}

// Observe adds a time that a request took.
func (b *ByServer) Observe(ctx context.Context, model, server string, took time.Duration) {
	Observe(ctx, b.distribution.WithLabelValues(model), took.Seconds())
	b.Mean.WithLabelValues(server).Observe(took.Seconds())
}

// Of are the times of one server with a model.
func (b *ByServer) Of(model, server string) ServerObserver {
	return ServerObserver{b.distribution.WithLabelValues(model), b.Mean.WithLabelValues(server)}
}

// ServerObserver adds times of one server, without exemplars.
type ServerObserver struct{ distribution, mean prometheus.Observer }

// Observe adds a time.
func (o ServerObserver) Observe(took time.Duration) {
	o.distribution.Observe(took.Seconds())
	o.mean.Observe(took.Seconds())
}
