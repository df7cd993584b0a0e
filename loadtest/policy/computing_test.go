package policy

import (
	"slices"
	"testing"
)

// Sixteen siblings at once from a conversation that no server holds: those that come later go
// where the first one computes it, rather than each to a server of its own. Other servers that
// are idle compute it too: prefill servers, and in pieces decode servers. The goal, two times in all,
// is reached where the last that waits is served as soon as one that computes all by itself.
func TestRun_SiblingsWaitForWhatIsBeingComputed(t *testing.T) {
	for name, most := range map[string]map[*Policy]float64{
		"siblings":       {arrival: 4.4, lateBinding: 3.8, pieces: 4.4},
		"siblings-tasks": {arrival: 2, lateBinding: 2, pieces: 2},
	} {
		s := scenario(t, name)
		trace := s.workload().trace(s.Name, 1, 3000)
		for p, most := range most {
			c, err := newCluster(trace, s, p, 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.run(); err != nil {
				t.Fatal(err)
			}
			times, alone := c.headsComputed()
			t.Logf("%s, %s: a conversation is computed %.2f times for sixteen siblings, %.2f of them by decode servers, mean TTFT %.2f s", name, p.Name, times, alone, c.outcome(p, 1).TTFT.Mean)
			if times > most {
				t.Errorf("%s, %s: a conversation is computed %.2f times for sixteen siblings", name, p.Name, times)
			}
		}
	}
}

// headsComputed is how many times what siblings begin with was computed, and of that by decode servers
// alone.
func (c *cluster) headsComputed() (times, alone float64) {
	head := int(c.scenario.Workload.Kinds[0].HeadTokens.Least)
	families := make(map[int32]bool)
	for i := range c.jobs {
		families[c.jobs[i].req.Blocks[0]] = true
	}
	for i := range c.jobs {
		j := &c.jobs[i]
		part := float64(max(0, head-j.prefillHit)) / float64(head*len(families))
		times += part
		if j.pair.Prefill == Aggregated {
			alone += part
		}
	}
	return times, alone
}

// Where the link of the server that computes a conversation is slow, its siblings do not all wait for
// that link: others compute it too, and what is moved does not pile up.
func TestRun_SiblingsDoNotAllUseOneSlowLink(t *testing.T) {
	s := scenario(t, "siblings-slow")
	var ttft, rivals float64
	for seed := uint64(5); seed <= 6; seed++ { // it depends on the seed how much would pile up
		trace := s.workload().trace(s.Name, seed, 0)
		rival, err := Run(trace, s, dynamoWith("", 0.1, conditionalHot), seed)
		if err != nil {
			t.Fatal(err)
		}
		cut, err := Run(trace, s, pieces, seed)
		if err != nil {
			t.Fatal(err)
		}
		ttft, rivals = ttft+cut.TTFT.Mean/2, rivals+rival.TTFT.Mean/2
	}
	t.Logf("mean TTFT %.2f s, %.2f s by a rule that computes what they share on more servers", ttft, rivals)
	if ttft > 1.6*rivals { // 2.5 times as long where links count as free
		t.Error("transfers pile up")
	}
}

// What a server was sent counts from then on until its events have come, once for each request
// that lets it compute it, and behind what it holds only.
func TestComputing_CountsUntilTheEventsAreThere(t *testing.T) {
	c := newComputing(2, 1, 5)
	first := &job{req: &Request{Prompt: 3 * blockTokens, Blocks: []int32{1, 2, 3}}, upTo: 3 * blockTokens, pair: Pair{Prefill: 1}}
	second := &job{req: &Request{Prompt: 2*blockTokens + 9, Blocks: []int32{1, 2, 4}}, upTo: 2*blockTokens + 9, pair: Pair{Prefill: 1}}
	c.begin(first)
	c.begin(second)
	held := func(now float64, blocks ...int32) int {
		h := []int{0, 0, 0}
		c.extend(blocks, h, now)
		if h[0] != 0 || h[2] != 0 {
			t.Errorf("a server that was sent nothing holds %d blocks", h[0])
		}
		return h[1]
	}
	if got := held(0, 1, 2, 3); got != 3 {
		t.Errorf("%d blocks while all are computed, want 3", got)
	}
	if got := held(0, 1, 2, 4); got != 2 {
		t.Errorf("%d blocks of a prompt whose last is in part, want 2", got)
	}
	c.end(first, 5)
	if got := held(4.9, 1, 2, 3); got != 3 {
		t.Errorf("%d blocks before the events are there, want 3", got)
	}
	if got := held(5, 1, 2, 3); got != 2 {
		t.Errorf("%d blocks while the second computes two, want 2", got)
	}
	c.end(second, 6)
	if got := held(6, 1, 2, 3); got != 0 || slices.Max(c.copies) != 0 {
		t.Errorf("%d blocks at the end, copies left: %v", got, c.copies)
	}
}
