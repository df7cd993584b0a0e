package main

import (
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/compare"
	"github.com/tandem-gateway/tandem/loadtest/policy"
)

// What stands beside the measured figures is of the same cluster, chosen by the same rule.
func TestLive_SimulatesTheClusterThatRuns(t *testing.T) {
	shape := compare.DefaultShape()
	s, err := policy.ParseScenario(compare.Scenario(&shape))
	if err != nil {
		t.Fatal(err)
	}
	if s.Prefill != shape.Prefill || s.Decode != shape.Decode || len(s.PrefillRacks) != shape.Racks || s.Speedup != shape.Speedup ||
		s.OwnUplink != shape.Uplink || s.Hardware.NIC != shape.Link || s.Hardware.DecodeCapacity != 16*shape.Blocks {
		t.Errorf("%+v is simulated as %+v", shape, s)
	}
	var ways []compare.Result
	for _, way := range compare.Ways() {
		ways = append(ways, compare.Result{Way: way})
	}
	policies, err := simulated(ways)
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range ways {
		found := way.Simulated == ""
		for _, p := range policies {
			found = found || p.Name == way.Simulated
		}
		if !found {
			t.Errorf("nothing simulates %s", way.Name)
		}
	}
}
