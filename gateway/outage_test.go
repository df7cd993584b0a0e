package gateway

import (
	"log/slog"
	"strings"
	"testing"

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
