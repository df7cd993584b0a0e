package policy

import "testing"

// Where no request waits, one that arrives at a replica which does not decide is bound there: it
// takes no longer than with one gateway, and not a hop to the one that decides and back.
func TestRun_AReplicaBindsAtOnceWhileNobodyWaits(t *testing.T) {
	trace := readShort(t)
	mean := func(name string) float64 {
		s := scenario(t, name)
		s.Speedup = 0.02
		o, err := Run(trace, s, pieces, 1)
		if err != nil {
			t.Fatal(err)
		}
		return o.TTFT.Mean
	}
	one, three := mean("D"), mean("D3")
	t.Logf("mean TTFT %.4f s with one gateway, %.4f s with three", one, three)
	if three > one+0.01 { // two of three requests would take two hops of 30 ms
		t.Errorf("%.4f s with three gateways, %.4f s with one", three, one)
	}
}
