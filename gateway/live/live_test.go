package live

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
	"github.com/tandem-gateway/tandem/pd/histogram"
	"github.com/tandem-gateway/tandem/pd/history"
	"github.com/tandem-gateway/tandem/pd/queue"
	"github.com/tandem-gateway/tandem/pd/retry"
	"github.com/tandem-gateway/tandem/pools"
)

// noon is when everything in these tests happens.
var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// sourceOf is a source of a fleet that nobody probes, and in which no request runs.
func sourceOf(t testing.TB, specs ...pools.Spec) Source {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	fleet := pools.NewFleet(pools.Default(), log)
	t.Cleanup(fleet.Close)
	if err := fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	q, suspects := queue.New(queue.Default()), retry.NewQuarantine()
	metrics := pd.NewMetrics(prometheus.NewRegistry(), histogram.Config{}, q, suspects)
	binder := &pd.Binder{Queue: q, Chooser: &pd.Chooser{
		Snapshotter: pd.Snapshotter{Config: pd.DefaultConfig().BindConfig, Fleet: fleet, Links: cost.NewLinks(cost.DefaultLinks()), Cost: cost.Default()},
		Metrics:     metrics,
	}}
	return Source{
		Fleet: fleet, Version: "v1", Scaling: func() []Pool { return nil }, Draining: func() bool { return false },
		PD: &pd.Orchestrator{
			Config: pd.DefaultConfig().LegConfig, Binder: binder, Fleet: fleet, Queue: q, Suspects: suspects, Metrics: metrics, Log: log,
			Decisions: decision.NewRecords(time.Hour, 1<<20), History: history.New(),
		},
	}
}

// shown is the JSON of a state, as the port serves it.
func shown(t testing.TB, s *Source, model string, now time.Time) string {
	t.Helper()
	text, err := json.Marshal(merge(model, s.Report(model, now), nil))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// get asks a handler for a path.
func get(t testing.TB, h http.Handler, path string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Result()
}

// body is what an answer says.
func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	var text strings.Builder
	if _, err := copyTo(&text, resp); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
