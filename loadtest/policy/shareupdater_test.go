package policy

import (
	"testing"

	"github.com/tandem-gateway/tandem/pools/share"
)

// Two kinds of prefill hardware: requests wait less where each kind gets the lengths that
// it is quicker with.
func TestShares_ShortenTheWaitOnUnlikeHardware(t *testing.T) {
	t.Parallel()
	s := scenario(t, "testdata/unlike/x1.5.yaml")
	trace, err := ReadTraceFile(tracePath, 6000)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCluster(trace, s, shares, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	told := c.outcome(shares, 1)
	untold, err := Run(trace, s, lateBinding, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("mean TTFT %.2f s, %.2f s without", told.TTFT.Mean, untold.TTFT.Mean)
	if told.TTFT.Mean > 0.98*untold.TTFT.Mean {
		t.Errorf("mean TTFT %.2f s, %.2f s without shares", told.TTFT.Mean, untold.TTFT.Mean)
	}
	table := c.gateways[0].late.(*lateBinder).field.Shares
	if short, long := table.Prefill[share.ClassOf(1500, 0)], table.Prefill[share.ClassOf(100_000, 0)]; short[0] < 0.99 || long[1] < 0.99 {
		t.Errorf("of 1,500 tokens %.2f, of 100,000 %.2f: want the first kind and the second", short, long)
	}
}
