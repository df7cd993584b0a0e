package policy

import "testing"

// Where caches are too small for what comes back, those that are protected hold more of it; where they are large enough
// nothing is parted.
func TestProtect_WhereMuchIsLost(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 0)
	if err != nil {
		t.Fatal(err)
	}
	run := func(scenarioName string, policy *Policy) *Outcome {
		o, err := Run(trace, scenario(t, scenarioName), policy, 101)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	open, protected := run("E", unprotected), run("E", pieces)
	if protected.HitRate < 1.05*open.HitRate || protected.TTFT.Mean > 0.99*open.TTFT.Mean {
		t.Errorf("%.1f %% found and a mean of %.3f s, without protection %.1f %% and %.3f s", 100*protected.HitRate, protected.TTFT.Mean, 100*open.HitRate, open.TTFT.Mean)
	}
	open, protected = run("B", unprotected), run("B", pieces)
	if protected.TTFT != open.TTFT {
		t.Errorf("with large caches %+v, without protection %+v", protected.TTFT, open.TTFT)
	}
}
