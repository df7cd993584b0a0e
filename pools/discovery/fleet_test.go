package discovery

import (
	"log/slog"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// newFleet returns a fleet whose servers are not probed.
func newFleet(t *testing.T) *pools.Fleet {
	t.Helper()
	f := pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	return f
}

func spec(url string, role pools.Role) pools.Spec {
	return pools.Spec{URL: url, Role: role, Connector: "nixl"}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
