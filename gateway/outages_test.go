package gateway

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// While no server takes requests there is one line for all of them, and not one for each.
func TestOutages_OneLineForManyRequests(t *testing.T) {
	var log testlog.Buffer
	of := usual(t)
	of.log = slog.NewTextHandler(&log, nil)
	g := run(t, of, complete().roundTrip)
	for range 20 {
		if got := g.post(`{"model":"m","prompt":"hi"}`); got.status != 503 {
			t.Fatalf("%d %s without a server", got.status, got.body)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), `msg="no server takes requests of a model"`) {
		t.Errorf("%d errors in the log: %s", n, &log)
	}
}

func TestOutages_ALineAMinuteForEachModel(t *testing.T) {
	var o outages
	now := time.Unix(1_700_000_000, 0)
	for i, x := range []struct {
		model string
		after time.Duration
		want  int
	}{
		{"a", 0, 1}, {"a", time.Second, 0}, {"b", 0, 1}, {"a", 58 * time.Second, 0},
		{"a", time.Second, 3}, {"a", time.Second, 0}, {"b", 0, 1}, {"b", time.Hour, 1}, // the outages before are over
	} {
		now = now.Add(x.after)
		if got := o.add(x.model, now); got != x.want {
			t.Errorf("%d: %d of %s, want %d", i, got, x.model, x.want)
		}
	}
	if len(o.models) != 1 {
		t.Errorf("%d models are remembered, want that of the last outage", len(o.models))
	}
}
