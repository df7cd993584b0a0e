package autoscale

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/mix"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/pools"
)

// One kind of hardware takes the place of another: the old servers stay until the new ones
// are there. What the other role does is its own.
func TestHoldBack_NobodyGoesBeforeTheOtherIsThere(t *testing.T) {
	wants := func() []PoolWant {
		return []PoolWant{
			{Role: pools.Prefill, Variant: "old", Want: sizing.Want{Servers: 1, Reason: sizing.Demand}},
			{Role: pools.Decode, Variant: "old", Want: sizing.Want{Servers: 0, Reason: sizing.Demand}},
			{Role: pools.Decode, Variant: "new", Want: sizing.Want{Servers: 2, Reason: sizing.Demand}},
		}
	}
	shown := []Hardware{
		{Role: pools.Prefill, Variant: "old", Ready: 3}, {Role: pools.Decode, Variant: "old", Ready: 4}, {Role: pools.Decode, Variant: "new", Ready: 1},
	}
	held := wants()
	holdBack(held, shown)
	if held[0].Want.Servers != 1 || held[1].Want != (sizing.Want{Servers: 4, Reason: sizing.Pending}) || held[2].Want.Servers != 2 {
		t.Errorf("one of the new is missing: %+v", held)
	}
	shown[2].Ready = 2
	free := wants()
	holdBack(free, shown)
	if free[1].Want != (sizing.Want{Servers: 0, Reason: sizing.Demand}) {
		t.Errorf("all of the new are there: %+v", free)
	}
}

// What is wanted of a model whose hardware is replaced keeps the old servers as well.
func TestPools_OldHardwareStaysUntilTheNewIsThere(t *testing.T) {
	s := NewScaler(testConfig(), nil, demand.NewMeter(newClock().Now), nil, slog.New(slog.DiscardHandler))
	s.Allocate = func(mix.AllocationRequest) (mix.HardwareAllocation, error) {
		return mix.HardwareAllocation{Prefill: map[string]int{"old": 1}, Decode: map[string]int{"old": 0, "new": 2}}, nil
	}
	plan := sizing.Plan{Prefill: sizing.Want{Servers: 1, Reason: sizing.Demand}, Decode: sizing.Want{Servers: 2, Reason: sizing.Demand}, Known: true}
	for there, want := range map[int]sizing.Want{
		1: {Servers: 4, Reason: sizing.Pending},
		2: {Servers: 0, Reason: sizing.Demand},
	} {
		state := State{Hardware: []Hardware{
			{Role: pools.Prefill, Variant: "old", Ready: 1},
			{Role: pools.Decode, Variant: "old", Ready: 4}, {Role: pools.Decode, Variant: "new", Ready: there},
		}}
		for _, w := range s.pools(&memory{}, plan, &sizing.Signals{}, &state) {
			if w.Role == pools.Decode && w.Variant == "old" && w.Want != want {
				t.Errorf("%d of 2 new ones are there: %+v of the old, want %+v", there, w.Want, want)
			}
		}
	}
}

// The signals decide nothing, and no hardware was chosen before: the last numbers stand.
func TestPools_StaleSignalsChooseNoHardware(t *testing.T) {
	s := NewScaler(testConfig(), pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler)), demand.NewMeter(newClock().Now), nil, slog.New(slog.DiscardHandler))
	s.Allocate = func(a mix.AllocationRequest) (mix.HardwareAllocation, error) {
		t.Errorf("asked for the hardware of %+v", a)
		return mix.HardwareAllocation{}, nil
	}
	plan := sizing.Plan{Prefill: sizing.Want{Servers: 3, Reason: sizing.Stale}, Decode: sizing.Want{Servers: 2, Reason: sizing.Stale}, Known: true}
	d := Decision{Plan: plan, Pools: s.pools(&memory{}, plan, &sizing.Signals{}, &State{})}
	for _, w := range d.wanted(model) {
		if want := map[string]int{"prefill": 3, "decode": 2}[w.Role]; w.Servers != want {
			t.Errorf("%s: %d wanted, not the %d that stand", w.Role, w.Servers, want)
		}
	}
}

// The log says that hardware cannot be chosen, and again when it cannot once more.
func TestPools_LogsOnceThatNoHardwareIsChosen(t *testing.T) {
	var said strings.Builder
	s := NewScaler(testConfig(), nil, demand.NewMeter(newClock().Now), nil, slog.New(slog.NewTextHandler(&said, nil)))
	m, plan := &memory{}, sizing.Plan{Known: true}
	for _, err := range []error{errors.New("unknown"), errors.New("unknown"), nil, errors.New("unknown")} {
		s.Allocate = func(mix.AllocationRequest) (mix.HardwareAllocation, error) { return mix.HardwareAllocation{}, err }
		s.pools(m, plan, &sizing.Signals{}, &State{})
	}
	if n := strings.Count(said.String(), "hardware is not chosen"); n != 2 {
		t.Errorf("said %d times, want 2:\n%s", n, said.String())
	}
}
