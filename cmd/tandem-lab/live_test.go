package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/compare"
	"github.com/tandem-gateway/tandem/loadtest/policy"
	"github.com/tandem-gateway/tandem/pd/cost"
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
		// Policies of whole prompts compute them whole on decode too. With an objective for the first token the gateway
		// serves for requests in time, and the policies serve for the mean.
		flags := strings.Join(way.Flags, " ")
		whole := strings.Contains(flags, "--prefill-pieces 0s") && strings.Contains(flags, "--decode-pieces 0s")
		if whole == (way.Simulated == "tandem-pieces") || strings.Contains(flags, "ttft-slo") {
			t.Errorf("%s, which is simulated as %s, runs with %s", way.Name, way.Simulated, flags)
		}
	}
	if compare.PieceSeconds != time.Duration(cost.DefaultPieces).Seconds() {
		t.Errorf("pieces of %v s run, and of %v are simulated", compare.PieceSeconds, time.Duration(cost.DefaultPieces))
	}
}

// Engines and simulator get the same agents: what is written for the former reads as the same
// requests, with the same beginnings in common.
func TestLive_AgentsLoadReadsAsItWasGenerated(t *testing.T) {
	cfg := compare.Config{Load: "agents", Limit: 200, Shape: compare.DefaultShape()}
	path, remove, err := liveTrace(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	read, err := policy.ReadTraceFile(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	generated, err := liveAgents(&cfg.Shape).Trace("", cfg.Limit)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Requests) != 200 || len(generated.Requests) != 200 {
		t.Fatalf("%d requests of %d", len(read.Requests), len(generated.Requests))
	}
	seen := make(map[int32]int32) // ids are numbered anew
	for i, want := range generated.Requests {
		got := read.Requests[i]
		if got.Prompt != want.Prompt || got.Output != want.Output || len(got.Blocks) != len(want.Blocks) || math.Abs(got.Stamp-want.Stamp+generated.Requests[0].Stamp) > 0.002 {
			t.Fatalf("request %d is read as %+v, was %+v", i, got, want)
		}
		for k, id := range want.Blocks {
			if renamed, known := seen[id]; known && renamed != got.Blocks[k] {
				t.Fatalf("block %d of request %d is another one", k, i)
			}
			seen[id] = got.Blocks[k]
		}
	}
	if _, _, err := liveTrace(&compare.Config{Load: "other"}); err == nil {
		t.Error("an unknown load is taken")
	}
}
