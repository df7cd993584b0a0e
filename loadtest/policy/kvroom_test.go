package policy

import "testing"

// Where decode's KV is nearly all taken, little of it may stand empty: gateways that kept a server for a large request
// until all of its room was there, and let decode compute prompts meanwhile, took five times as long as those that
// leave the waiting to engines.
func TestRun_LittleKVIsNotKeptEmpty(t *testing.T) {
	s := scenario(t, "testdata/little-kv.yaml")
	trace := s.workload().trace(s.Name, 1, 3000)
	mean := func(name string) float64 {
		t.Helper()
		found, err := FindPolicies([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		o, err := Run(trace, s, found[0], 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.2f s to the first token in the mean", name, o.TTFT.Mean)
		return o.TTFT.Mean
	}
	rival := mean("least-load")
	for _, ours := range []string{"tandem-late", "tandem-pieces"} {
		if got := mean(ours); got > 3*rival {
			t.Errorf("%s: %.2f s to the first token in the mean, least load %.2f", ours, got, rival)
		}
	}
}
