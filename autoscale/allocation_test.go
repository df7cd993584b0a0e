package autoscale

import (
	"errors"
	"log/slog"
	"strings"
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

// Nobody asks for anything, and some servers are wanted all the same: they are work for
// the choice of hardware too, or it would want none.
func TestPlan_FewestServersAreLoad(t *testing.T) {
	p := DefaultPlanner()
	p.Prefill.Min, p.Decode.Min = 3, 1
	s := usualSignals()
	s.Prompt, s.Output, s.KV = make(Series, keptBins), make(Series, keptBins), make(Series, keptBins)
	s.Prefill.Ready, s.Decode.Ready = 3, 1
	plan, _ := p.Plan(s, Memory{}, 0)
	if plan.Prefill.Load != 3 || plan.Decode.Load != 1 {
		t.Errorf("%+v: want the load of 3 and 1 servers", plan)
	}
}

// The signals decide nothing, and no hardware was chosen before: the last numbers stand.
func TestPools_StaleSignalsChooseNoHardware(t *testing.T) {
	s := NewScaler(testConfig(), pools.NewFleet(pools.Default(), slog.New(slog.DiscardHandler)), NewMeter(newClock().now), nil, slog.New(slog.DiscardHandler))
	s.Allocate = func(a AllocationRequest) (HardwareAllocation, error) {
		t.Errorf("asked for the hardware of %+v", a)
		return HardwareAllocation{}, nil
	}
	plan := Plan{Want{Servers: 3, Reason: Stale}, Want{Servers: 2, Reason: Stale}, true}
	d := Decision{Plan: plan, Pools: s.pools(&memory{}, plan, &Signals{}, &State{})}
	for _, w := range d.wanted(model) {
		if want := map[string]int{"prefill": 3, "decode": 2}[w.Role]; w.Servers != want {
			t.Errorf("%s: %d wanted, not the %d that stand", w.Role, w.Servers, want)
		}
	}
}

// The log says that hardware cannot be chosen, and again when it cannot once more.
func TestPools_LogsOnceThatNoHardwareIsChosen(t *testing.T) {
	var said strings.Builder
	s := NewScaler(testConfig(), nil, NewMeter(newClock().now), nil, slog.New(slog.NewTextHandler(&said, nil)))
	m, plan := &memory{}, Plan{Known: true}
	for _, err := range []error{errors.New("unknown"), errors.New("unknown"), nil, errors.New("unknown")} {
		s.Allocate = func(AllocationRequest) (HardwareAllocation, error) { return HardwareAllocation{}, err }
		s.pools(m, plan, &Signals{}, &State{})
	}
	if n := strings.Count(said.String(), "hardware is not chosen"); n != 2 {
		t.Errorf("said %d times, want 2:\n%s", n, said.String())
	}
}
