package policy

import "testing"

// In pieces the mean time to the first token is shorter where prompts are long, decode has pulled
// most before the last piece ends, and nothing is moved twice.
func TestRun_PiecesLetShortRequestsBetween(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 3000)
	if err != nil {
		t.Fatal(err)
	}
	run := func(p *Policy) (*cluster, *Outcome) {
		c, err := newCluster(trace, scenario(t, "G"), p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		checkOrder(t, c, p)
		return c, c.outcome(p, 1)
	}
	_, whole := run(lateBinding)
	c, cut := run(pieces)
	staged, pieced := 0, 0
	for i := range c.jobs {
		if j := &c.jobs[i]; j.pieces > 0 {
			pieced++
			staged += j.staged
		}
	}
	t.Logf("%d of %d prompts in pieces, %d tokens pulled before the last one; mean TTFT %.2f s, whole %.2f s", pieced, len(c.jobs), staged, cut.TTFT.Mean, whole.TTFT.Mean)
	if pieced == 0 || staged == 0 || cut.TTFT.Mean > 0.95*whole.TTFT.Mean {
		t.Error("pieces gain nothing")
	}
	if moved, before := cut.SameRack+cut.Cross, whole.SameRack+whole.Cross; moved > 1.02*before {
		t.Errorf("%.2f TB are moved, %.2f with whole prompts", moved/1e12, before/1e12)
	}
}
