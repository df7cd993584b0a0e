package decision

import (
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/cached"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// What prefill fetched it holds beside what it held: the rest alone is predicted to be computed.
func TestPredictedCache_CountsWhatWasFetched(t *testing.T) {
	for outcome, want := range map[FetchOutcome]int{Fetched: 1600, Recomputed: 1600, NotFetched: 400, "": 400} {
		c := Choice{
			Demand: cost.Demand{PromptTokens: 2000}, Chosen: cost.Alternative{Prefill: "p", Decode: "d"},
			Candidates: cost.Candidates{Prefill: []cost.Candidate{{ID: "p", Cached: cached.Tokens{GPU: 400}}}},
			Fetch:      Fetch{Server: "d", Tokens: 1200, Outcome: outcome},
		}
		if held, computed := c.PredictedCache(); held != want || computed != 2000-want {
			t.Errorf("%q: %d held and %d computed, want %d held", outcome, held, computed, want)
		}
	}
}
