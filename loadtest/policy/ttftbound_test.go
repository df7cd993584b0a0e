package policy

import "testing"

// No policy is below the bound, whoever says the first token, and the reference that knows more than
// any gateway can is not either. One request alone comes close to it: it is no empty promise.
func TestTTFTBound_NoPolicyIsBelow(t *testing.T) {
	trace := readShort(t)
	alone := &Trace{Requests: []Request{{Prompt: 3000, Output: 10, Blocks: []int32{0, 1, 2, 3, 4, 5}}}, Blocks: 6}
	for _, name := range []string{"A", "B", "D", "E", "half-slow"} {
		for _, first := range []bool{false, true} {
			s := scenario(t, name)
			s.FirstFromPrefill = first
			for _, p := range []*Policy{pieces, latePairs, lateExact, leastLoad, dynamoWith("", 0.1, conditionalHot)} {
				mean, bound := meanAndBound(t, trace, s, p)
				if mean < bound-1e-9 {
					t.Errorf("%s, first token from prefill %v: %s has a mean of %.4f s, the bound is %.4f s", name, first, p.Name, mean, bound)
				}
				mean, bound = meanAndBound(t, alone, s, p)
				if mean < bound-1e-9 || p == pieces && len(s.Slow) == 0 && mean > bound+0.1 {
					t.Errorf("%s, first token from prefill %v: %s takes %.4f s for one request, the bound is %.4f s", name, first, p.Name, mean, bound)
				}
			}
		}
	}
}

// meanAndBound runs a policy with seed 1.
func meanAndBound(t *testing.T, trace *Trace, s *Scenario, p *Policy) (mean, bound float64) {
	t.Helper()
	c, err := newCluster(trace, s, p, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.run(); err != nil {
		t.Fatal(err)
	}
	return c.outcome(p, 1).TTFT.Mean, c.ttftBound()
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
		if got := mostSaved(c.uses, c.room); got < c.want-1e-6 || got > c.want+1e-3 {
			t.Errorf("with room for %.0f block seconds of %v: %.4f s, want %.0f", c.room, c.uses, got, c.want)
		}
	}
}
