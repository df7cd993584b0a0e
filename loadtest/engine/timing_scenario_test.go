package engine

import (
	"math"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/compare"
	"github.com/tandem-gateway/tandem/loadtest/policy"
)

// The simulator's figures beside those of running engines are of the same steps: what these take is written down twice.
func TestTiming_IsThatOfTheScenarioOfLive(t *testing.T) {
	shape := compare.DefaultShape()
	s, err := policy.ParseScenario(compare.Scenario(&shape))
	if err != nil {
		t.Fatal(err)
	}
	h := &s.Hardware
	within := func(what string, got, want, most float64) {
		t.Helper()
		if math.Abs(got-want) > most {
			t.Errorf("%s takes %.2f ms in the scenario, and an engine %.2f", what, 1000*got, 1000*want)
		}
	}
	for _, tokens := range []int{1, 512, 8192} {
		n := float64(tokens)
		simulated := h.PrefillBase + h.PrefillStep + (h.PrefillPerToken*n+h.PrefillPerSquare*n*n)/h.PrefillRate
		within("a prefill", simulated, prefillTime(tokens, n*n).Seconds(), 0.001*simulated)
	}
	within("what a decode step computes prompts beside", h.DecodePrefillStep, prefillTime(1, 1).Seconds(), 0.0001)
	for share := 0.1; share <= 0.7; share += 0.1 {
		within("a decode step", h.DecodeBase+h.DecodePerContext*share*float64(h.DecodeCapacity), decodeTime(share).Seconds(), 0.0013)
	}
}
