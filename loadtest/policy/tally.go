package policy

import "time"

// tally collects what a run's reports need while it goes on.
type tally struct {
	decisions int
	deciding  time.Duration
	sameRack  float64 // bytes
	crossRack float64
	transfers []float64 // seconds of each flow
	gaps      [10]gapHistogram
}

func (t *tally) recordDecision(took time.Duration) {
	t.decisions++
	t.deciding += took
}

func (t *tally) recordTransfer(c *cluster, j *job, bytes, seconds float64) {
	t.recordBytes(bytes, c.prefills[j.pair.Prefill].rack == c.decodes[j.pair.Decode].rack)
	t.transfers = append(t.transfers, seconds)
}

func (t *tally) recordBytes(bytes float64, inRack bool) {
	if inRack {
		t.sameRack += bytes
	} else {
		t.crossRack += bytes
	}
}

// gaps records the gaps between tokens of the run that a group has finished.
func (c *cluster) gaps(g *decodeGroup) {
	for _, d := range g.servers {
		var all, fresh [10]int
		for _, j := range d.batch {
			if j.compute > 0 {
				continue
			}
			all[j.decile]++
			if !j.fresh {
				continue
			}
			fresh[j.decile]++
			if j.generated > 0 { // it comes back after a preemption
				gap := g.started + g.first - j.lastToken
				c.tally.gaps[j.decile].add(gap, 1)
				j.longestGap = max(j.longestGap, gap)
			}
		}
		for decile, n := range all {
			if n > 0 {
				c.tally.gaps[decile].add(g.first, n-fresh[decile])
				c.tally.gaps[decile].addRun(g.first+g.slope, g.slope, g.steps-1, n)
			}
		}
	}
}
