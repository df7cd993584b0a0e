package pd

import (
	"math"
	"testing"
	"time"
)

func TestHeat_FadesAndIsForgotten(t *testing.T) {
	var h heat
	now := time.Unix(1_700_000_000, 0)
	h.saved("a", 1000, now)
	h.saved("a", 500, now.Add(heatHalf))
	h.saved("b", 3, now)
	got := h.read(now.Add(2 * heatHalf))
	if math.Abs(got["a"]-500) > 1e-6 || len(got) != 1 || len(h.servers) != 1 {
		t.Errorf("%v is left, want 500 of a and nothing of b", got)
	}
}
