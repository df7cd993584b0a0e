package process

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Metrics is a Prometheus exposition.
type Metrics string

// Sum adds up the samples of a metric whose labels contain all that is given, as
// in `outcome="ok"`.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for line := range strings.Lines(string(m)) {
		series, text, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || series != name && !strings.HasPrefix(series, name+"{") {
			continue
		}
		matches := true
		for _, label := range labels {
			matches = matches && strings.Contains(series, label)
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil && matches {
			sum += value
		}
	}
	return sum
}

// ReadMetrics reads the metrics of a gateway at its admin address.
func ReadMetrics(ctx context.Context, admin string) (Metrics, error) {
	text, err := Ask(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	return Metrics(text), err
}

// AwaitServers waits until a gateway has so many servers that are up.
func AwaitServers(ctx context.Context, admin string, servers int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := ReadMetrics(ctx, admin)
		up := m.Sum("tandem_server_up")
		if err == nil && up == float64(servers) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%v of %d servers are up: %w", up, servers, ctx.Err())
		case <-tick.C:
		}
	}
}
