package policy

import (
	"math"
	"slices"
	"testing"
)

func TestBlockCache_EvictsWhatIsUsedLast(t *testing.T) {
	gone := evictThree(t, func(id int32) float64 { return []float64{30, 50, 20, 40}[id] })
	if !slices.Equal(gone, []int32{1, 3, 0}) {
		t.Errorf("evicted %v, want 1 3 0: what is used last goes first", gone)
	}
}

// A block is used by the next request with it that has not ended, and by none once all have.
func TestUses_Next(t *testing.T) {
	c, err := newCluster(readShort(t), scenario(t, "E"), foresight, 1)
	if err != nil {
		t.Fatal(err)
	}
	u := newUses(c.jobs, c.blocks, func(j *job) bool { return j.endedAt > 0 })
	first := c.jobs[0].req.whole()[0] // that all prompts of the trace begin with
	if got := u.next(first); got != c.jobs[0].arrived {
		t.Errorf("used next at %v, want %v", got, c.jobs[0].arrived)
	}
	c.jobs[0].endedAt = 1
	if got, want := u.next(first), c.jobs[u.has[first][0]].arrived; got != want || got <= c.jobs[0].arrived {
		t.Errorf("then used next at %v, want %v", got, want)
	}
	for i := range c.jobs {
		c.jobs[i].endedAt = 1
	}
	if got := u.next(first); !math.IsInf(got, 1) {
		t.Errorf("used at %v by no request", got)
	}
}

// On caches that are too small for the trace foresight finds more of the prompts, and the books are kept.
func TestForesight_FindsMore(t *testing.T) {
	trace, err := ReadTraceFile(tracePath, 1500)
	if err != nil {
		t.Fatal(err)
	}
	var found []float64
	for _, p := range []*Policy{pieces, foresight} {
		c, err := newCluster(trace, scenario(t, "E"), p, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.run(); err != nil {
			t.Fatal(err)
		}
		for c.cal.step() { // what is still on its way to the gateway
		}
		checkOrder(t, c, p)
		checkNothingHeld(t, c, p)
		o := c.outcome(p, 1)
		found = append(found, o.HitRate)
		t.Logf("%s: %.1f %% of the prompts found, mean TTFT %.3f s", p.Name, 100*o.HitRate, o.TTFT.Mean)
	}
	if found[1] < 1.2*found[0] {
		t.Errorf("foresight finds %.1f %%, and the order of use %.1f %%", 100*found[1], 100*found[0])
	}
}
