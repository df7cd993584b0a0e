package policy

import "testing"

// Short prompts share the steps of engines whose steps cost more than the prompts in them: with
// pairs only, gateways that send each prompt where it is cheapest for itself keep up with round
// robin, which fills all servers' steps. One prompt a step is 1.5 times too slow for this load,
// and the queue would grow without end.
func TestRun_ShortPromptsShareSteps(t *testing.T) {
	s := scenario(t, "short")
	trace := s.workload().trace(s.Name, s.Agents.Seed, 3000)
	keepUp(t, trace, s, "round-robin", 1.2, "tandem-late-pairs", "tandem-late")
}

// keepUp holds the mean times to the first token of policies of ours against a rival's, of which they may be so many
// times.
func keepUp(t *testing.T, trace *Trace, s *Scenario, rival string, most float64, ours ...string) {
	t.Helper()
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
	theirs := mean(rival)
	for _, name := range ours {
		if got := mean(name); got > most*theirs {
			t.Errorf("%s: %.2f s to the first token in the mean, %s %.2f", name, got, rival, theirs)
		}
	}
}
