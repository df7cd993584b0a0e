package policy

import (
	"slices"
	"testing"
)

// The bound that package order states, by tenths of the requests by prompt length, at 1.5
// times the load of B. The test allows for T what a prompt takes that no cache helps.
func TestRun_WaitIsBoundedInEveryDecile(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 2000)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*Policy{lateBinding, throughput} {
		s := *scenario(t, "B")
		s.Speedup = 1.5
		c, err := newCluster(trace, &s, p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		waited, bounds := longestWaits(c)
		for k := range waited {
			t.Logf("%s, decile %d: waited %.1f s at most, the bound is %.0f", p.Name, k+1, waited[k], bounds[k])
			if waited[k] > bounds[k] {
				t.Errorf("%s, decile %d: waited %.1f s, the bound is %.0f", p.Name, k+1, waited[k], bounds[k])
			}
		}
	}
}

// longestWaits are those of each decile, and the bounds of these requests.
func longestWaits(c *cluster) (waited, bounds [10]float64) {
	var turns []float64
	busy := 0.0 // longest that a turn kept a server
	overdue := make([]float64, len(c.jobs))
	for i := range c.jobs {
		j := &c.jobs[i]
		turns = append(turns, j.began)
		busy = max(busy, j.prefillEnd()-j.began+0.1)
		overdue[i] = j.arrived + 20 + 2*c.hw.prefill(j.req.Prompt, 0)
	}
	slices.Sort(turns)
	for i := range c.jobs {
		j := &c.jobs[i]
		if j.began-j.arrived < waited[j.decile] {
			continue
		}
		older := 0
		for k := range c.jobs {
			if o := &c.jobs[k]; o.arrived < j.arrived && o.began > overdue[i] && overdue[k] < j.began {
				older++
			}
		}
		fifty := 0.0
		first, _ := slices.BinarySearch(turns, overdue[i])
		for k := first; k < len(turns) && turns[k] <= j.began; k++ {
			fifty = max(fifty, turns[min(k+50, len(turns)-1)]-turns[k])
		}
		waited[j.decile] = j.began - j.arrived
		bounds[j.decile] = overdue[i] - j.arrived + float64(older+1)*(fifty+busy)
	}
	return waited, bounds
}
