package cost

import (
	"testing"

	"github.com/tandem-gateway/tandem/pools/curve"
)

// A curve gives the same seconds for a prompt whatever was asked of the work before.
func TestWork_IsThatOfItsPrompt(t *testing.T) {
	prefill := curve.Curve{0.01, 0.05, 0.0003}
	w := newWork(5000)
	for _, cached := range []int{0, 16, 16, 4000, 0, 9000, 4999, 16} {
		lacks := 5000 - min(cached, 4999)
		if got, want := w.behind(cached).On(&prefill), prefill.Seconds(curve.PrefillFeatures(lacks, 5000-lacks)); got != want {
			t.Errorf("behind %d tokens it takes %v s, want %v", cached, got, want)
		}
	}
}
