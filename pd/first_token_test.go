package pd

import (
	"testing"

	"github.com/tandem-gateway/tandem/pd/api"
)

// A completion that does not say how long it may be has 16 tokens: what goes on behind prefill's
// token, or behind a break, has no more of them.
func TestBound_OfACompletionIsThatOfTheAPI(t *testing.T) {
	for _, x := range []struct {
		dialect *api.Dialect
		own     int
		want    int
		field   string
	}{{api.Completions, 0, 16, "max_tokens"}, {api.Completions, 7, 7, "max_tokens"}, {api.Chat, 0, 0, ""}, {api.Chat, 7, 7, "max_tokens"}} {
		r := &Request{Dialect: x.dialect, MaxOutput: x.own}
		if x.own > 0 {
			r.MaxField = "max_tokens"
		}
		if got := r.forTranscript(); got.MaxOutput != x.want || got.MaxField != x.field {
			t.Errorf("%s of %d: %d by %q", x.dialect.Name, x.own, got.MaxOutput, got.MaxField)
		}
	}
}
