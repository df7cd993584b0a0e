package predict

import (
	"math"
	"testing"
	"time"
)

func TestCacheSavings_FadeAndAreForgotten(t *testing.T) {
	var c CacheSavings
	now := time.Unix(1_700_000_000, 0)
	c.Observe("a", 1000, now)
	c.Observe("a", 500, now.Add(savingsHalfLife))
	c.Observe("b", 3, now)
	got := c.Read(now.Add(2 * savingsHalfLife))
	if math.Abs(got["a"]-500) > 1e-6 || len(got) != 1 || len(c.servers) != 1 {
		t.Errorf("%v is left, want 500 of a and nothing of b", got)
	}
}
