// Package enginetest starts simulated engines that live as long as a test. Tests of the packages
// that serve import it; it imports loadtest/engine.
package enginetest

import (
	"context"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// Start starts an engine of a role and model that computes in no time, as changed by the
// test (nil: by nothing). It outlives the test's context, and is closed when the test has ended.
func Start(t testing.TB, role, model string, change func(*engine.Config)) *engine.Engine {
	t.Helper()
	cfg := engine.Default()
	cfg.Role, cfg.Model, cfg.TimeScale = role, model, 0
	if change != nil {
		change(&cfg)
	}
	e, err := engine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}
