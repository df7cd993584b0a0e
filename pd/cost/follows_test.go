package cost

import (
	"testing"

	"github.com/tandem-gateway/tandem/kvstate/cached"
)

// A request follows another one where a prefill server computes a beginning of its prompt that none
// has yet: a server that has it makes waiting for another needless.
func TestCandidates_Follow(t *testing.T) {
	for name, c := range map[string]struct {
		held []cached.Tokens
		want bool
	}{
		"nothing is held":                 {[]cached.Tokens{{}, {}}, false},
		"a beginning is being computed":   {[]cached.Tokens{{GPU: 20_000, Pending: 20_000}, {}}, true},
		"another server has as much":      {[]cached.Tokens{{GPU: 20_000, Pending: 20_000}, {GPU: 19_500}}, false},
		"another server has a part of it": {[]cached.Tokens{{GPU: 20_000, Pending: 20_000}, {GPU: 8000}}, true},
		"the end of what it has":          {[]cached.Tokens{{GPU: 20_000, Pending: 500}, {}}, false},
	} {
		var f Candidates
		for _, held := range c.held {
			f.Prefill = append(f.Prefill, Candidate{Cached: held})
		}
		if got := f.follows(); got != c.want {
			t.Errorf("%s: follows %v", name, got)
		}
	}
}
