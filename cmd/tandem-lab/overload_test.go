package main

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/overload"
)

// The short form of make overload: seconds, on a machine that does other things too, so
// that only what would break entirely is seen; and few requests that take long, so that the
// machine's pauses are short beside them.
func TestOverload_ShortForm(t *testing.T) {
	t.Parallel()
	cfg := overload.Default()
	cfg.From, cfg.Dir = testPrograms(t), t.TempDir()
	cfg.Peak, cfg.Step, cfg.Over, cfg.After, cfg.Share = 4, 7*time.Second, 12*time.Second, 13*time.Second, 0
	cfg.SLO = 4 * time.Second
	cfg.Engine = []string{"--time-scale", "6"} // a sixth of the requests keep them as busy
	r, err := overload.Measure(t.Context(), cfg, func(p overload.Phase) { t.Log(p) })
	if err != nil {
		t.Fatal(err)
	}
	if r.Over.Good < 0.5*r.Peak.Good {
		t.Errorf("%.1f/s in time under overload, %.1f/s at the peak", r.Over.Good, r.Peak.Good)
	}
	if r.Over.Refused == 0 || r.Over.Refusal99 > cfg.SLO/2 || r.Over.Failed > 0 || r.After.Failed > 0 {
		t.Errorf("%d refused, p99 %v; %d and later %d failed otherwise", r.Over.Refused, r.Over.Refusal99, r.Over.Failed, r.After.Failed)
	}
	if r.After.Late > 0 {
		t.Errorf("%d requests were late ten seconds after the overload", r.After.Late)
	}
}
