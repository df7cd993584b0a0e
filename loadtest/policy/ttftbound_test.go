package policy

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// No policy is below the bound, whoever says the first token, and the reference that knows more than
// any gateway can is not either, under a load that servers cannot serve at once. Where prefill servers
// compute all prompts, what they wait for each other is some of it. One request alone comes close to
// it: it is no empty promise.
func TestTTFTBound_NoPolicyIsBelow(t *testing.T) {
	alone := &Trace{Requests: []Request{{Prompt: 3000, Output: 10, Blocks: []int32{0, 1, 2, 3, 4, 5}}}, Blocks: 6}
	for _, name := range []string{"A", "B", "D", "E", "half-slow", "noise-06"} {
		for _, first := range []bool{false, true} {
			s := scenario(t, name)
			s.FirstFromPrefill = first
			busy := *s
			busy.Speedup *= 3
			few, many := newRun(t, alone, s, pieces).ttftBounds(), newRun(t, readShort(t), &busy, pieces).ttftBounds()
			if many[1].Wait < 0.05 {
				t.Errorf("%s: by pairs they wait %.4f s in the mean: too little to test it", name, many[1].Wait)
			}
			for _, p := range []*Policy{pieces, latePairs, lateExact, leastLoad, dynamoWith("", 0.1, conditionalHot), foresight} {
				if mean := meanTTFT(t, readShort(t), &busy, p); mean < many[0].sum()-1e-9 || p == latePairs && mean < many[1].sum()-1e-9 {
					t.Errorf("%s, first token from prefill %v: %s has a mean of %.4f s, the bound is %.4f s, by pairs %.4f s", name, first, p.Name, mean, many[0].sum(), many[1].sum())
				}
				mean, least := meanTTFT(t, alone, s, p), few[0].sum()
				if mean < least-1e-9 || p == pieces && len(s.Slow) == 0 && mean > least+0.1 {
					t.Errorf("%s, first token from prefill %v: %s takes %.4f s for one request, the bound is %.4f s", name, first, p.Name, mean, least)
				}
			}
		}
	}
}

func newRun(t *testing.T, trace *Trace, s *Scenario, p *Policy) *cluster {
	t.Helper()
	c, err := newCluster(trace, s, p, 1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// meanTTFT is that of a policy with seed 1.
func meanTTFT(t *testing.T, trace *Trace, s *Scenario, p *Policy) float64 {
	t.Helper()
	c := newRun(t, trace, s, p)
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	return c.outcome(p, 1).TTFT.Mean
}

// The parts of a mean are all of it, of policies as of the bound, and one that is below it is an error.
func TestTTFTParts_AreTheMean(t *testing.T) {
	c := newRun(t, readShort(t), scenario(t, "B"), pieces)
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	o := c.outcome(pieces, 1)
	report := policyReport(pieces, []*Outcome{o})
	parts := report.parts()
	bounds := c.ttftBounds()
	if math.Abs(parts.sum()-o.TTFT.Mean) > 1e-9 {
		t.Errorf("parts %+v are %.4f s of %.4f s", parts, parts.sum(), o.TTFT.Mean)
	}
	for part, pair := range map[string][2]float64{
		"new": {parts.Fresh, bounds[0].Fresh}, "known before": {parts.Again, 0}, "steps": {parts.Beside, bounds[0].Beside},
		"move": {parts.Move, bounds[0].Move}, "waiting": {parts.Wait, 0}, "step": {parts.Step, bounds[0].Step - 1e-12},
	} {
		if pair[0] < pair[1] {
			t.Errorf("%s: %.6f s, at least %.6f s", part, pair[0], pair[1])
		}
	}
	if err := o.isAbove(bounds); err != nil {
		t.Error(err)
	}
	o.TTFT.Mean = 0.99 * bounds[0].sum()
	if o.isAbove(bounds) == nil {
		t.Error("a mean below the bound is no error")
	}
}

// Two tasks of a second at one moment: on one server the second one ends a second later, on two none does.
// A short one that comes while a long one is worked on goes before it.
func TestLeastDelay(t *testing.T) {
	two := []task{{0, 1}, {0, 1}}
	for _, c := range []struct {
		tasks      []task
		rate, want float64
	}{{nil, 1, 0}, {two, 1, 1}, {two, 2, 0}, {[]task{{0, 10}, {1, 0.1}}, 1, 0.1}} {
		if got := leastDelay(c.tasks, c.rate); got > c.want+1e-9 || got < 0.8*c.want {
			t.Errorf("%v on %.0f servers: at least %.4f s, want %.1f s", c.tasks, c.rate, got, c.want)
		}
	}
}

// No schedule that servers can execute is below it: here the one that works on what has the least left.
func TestLeastDelay_NoScheduleIsBelow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 4).Draw(t, "servers")
		var tasks []task
		arrived := 0.0
		for range rapid.IntRange(1, 12).Draw(t, "tasks") {
			arrived += rapid.Float64Range(0, 2).Draw(t, "after")
			tasks = append(tasks, task{arrived, rapid.Float64Range(0, 8).Draw(t, "work")})
		}
		if got, reached := leastDelay(tasks, float64(servers)), leastLeftFirst(tasks, servers); got > reached+1e-6 {
			t.Fatalf("%v on %d servers: at least %.6f s, and a schedule has %.6f s", tasks, servers, got, reached)
		}
	})
}

// leastLeftFirst is by how much tasks end later, in all, than if each had a server to itself, where so many
// servers work on those that have the least left.
func leastLeftFirst(tasks []task, servers int) (delay float64) {
	type rest struct {
		task
		left float64
	}
	var open []rest
	for now, next := 0.0, 0; next < len(tasks) || len(open) > 0; {
		slices.SortFunc(open, func(a, b rest) int {
			if a.left < b.left {
				return -1
			}
			return 1
		})
		busy := open[:min(servers, len(open))]
		until := math.Inf(1)
		if next < len(tasks) {
			until = tasks[next].arrived
		}
		if len(busy) > 0 {
			until = min(until, now+busy[0].left)
		}
		for i := range busy {
			busy[i].left -= until - now
		}
		now = until
		open = slices.DeleteFunc(open, func(r rest) bool {
			if r.left > 1e-12 {
				return false
			}
			delay += now - r.arrived - r.work
			return true
		})
		for next < len(tasks) && tasks[next].arrived <= now {
			open = append(open, rest{tasks[next], tasks[next].work})
			next++
		}
	}
	return delay
}

// What the room does not suffice for is not saved: of two reuses alike, with room for one, one is;
// and what saves more for its room goes first.
func TestMostSaved_IsBoundedByTheRoom(t *testing.T) {
	alike := []reuse{{kept: 10, saved: 1}, {kept: 10, saved: 1}}
	unlike := []reuse{{kept: 10, saved: 1}, {kept: 10, saved: 5}}
	for _, c := range []struct {
		uses       []reuse
		room, want float64
	}{{alike, 0, 0}, {alike, 10, 1}, {alike, 20, 2}, {alike, 1000, 2}, {unlike, 10, 5}, {nil, 10, 0}} {
		if got := mostSaved(c.uses, c.room, 1); got < c.want-1e-6 || got > c.want+1e-3 {
			t.Errorf("with room for %.0f block seconds of %v: %.4f s, want %.0f", c.room, c.uses, got, c.want)
		}
	}
}
