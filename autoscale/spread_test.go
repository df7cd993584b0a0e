package autoscale

import (
	"testing"

	"github.com/tandem-gateway/tandem/pools"
)

// One kind of hardware takes the place of another: the old servers stay until the new ones
// are there. What the other role does is its own.
func TestHoldBack_NobodyGoesBeforeTheOtherIsThere(t *testing.T) {
	wants := func() []PoolWant {
		return []PoolWant{
			{Role: pools.Prefill, Variant: "old", Want: Want{Servers: 1, Reason: Demand}},
			{Role: pools.Decode, Variant: "old", Want: Want{Servers: 0, Reason: Demand}},
			{Role: pools.Decode, Variant: "new", Want: Want{Servers: 2, Reason: Demand}},
		}
	}
	shown := []Hardware{
		{Role: pools.Prefill, Variant: "old", Ready: 3}, {Role: pools.Decode, Variant: "old", Ready: 4}, {Role: pools.Decode, Variant: "new", Ready: 1},
	}
	held := wants()
	holdBack(held, shown)
	if held[0].Want.Servers != 1 || held[1].Want != (Want{Servers: 4, Reason: Pending}) || held[2].Want.Servers != 2 {
		t.Errorf("one of the new is missing: %+v", held)
	}
	shown[2].Ready = 2
	free := wants()
	holdBack(free, shown)
	if free[1].Want != (Want{Servers: 0, Reason: Demand}) {
		t.Errorf("all of the new are there: %+v", free)
	}
}
