package autoscale

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/health"
)

// Two servers of one pod are what KEDA counts as one, and as fast as both.
func TestLook_ServersOfAUnitAreOne(t *testing.T) {
	cfg := pools.Default()
	cfg.ProbeInterval, cfg.ProbeTimeout = 50*time.Millisecond, 20*time.Second
	transport := &http.Transport{}
	log := slog.New(slog.DiscardHandler)
	f := pools.NewFleet(cfg, log)
	health.Watch(f, transport, log)
	t.Cleanup(func() {
		f.Close()
		transport.CloseIdleConnections()
	})
	var specs []pools.Spec
	for range 2 {
		e, err := engine.Start(context.WithoutCancel(t.Context()), engine.Default())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		specs = append(specs, pools.Spec{URL: e.URL(), Role: pools.Decode, Connector: "nixl"})
	}
	see := func() poolState {
		if err := f.Apply(specs); err != nil {
			t.Fatal(err)
		}
		eventually(t, "both are up and tell their KV", func() bool {
			up := 0
			for _, s := range f.Servers() {
				if s.Health().Up && s.FreshLoad(time.Now()).KVTokens.Known {
					up++
				}
			}
			return up == 2
		})
		return sumUp(hardwareOf(f.Servers(), model, workload{prompt: 1000, computed: 1000, output: 100, itl: 50 * time.Millisecond}, time.Now()))
	}
	alone := see()
	specs[0].Unit, specs[1].Unit = "pod", "pod"
	together := see()
	if alone.decode.Ready != 2 || together.decode.Ready != 1 {
		t.Errorf("%d units alone, %d together", alone.decode.Ready, together.decode.Ready)
	}
	for i := range specs {
		specs[i].Elastic, specs[i].EventRanks = true, 4
	}
	if ranks := see(); ranks.decode.Ready != 8 || ranks.decodeSpeed != alone.decodeSpeed/4 {
		t.Errorf("%d ranks of speed %v; want 8, the engine's speed shared", ranks.decode.Ready, ranks.decodeSpeed)
	}
	if together.decodeSpeed != 2*alone.decodeSpeed || together.kvCapacity != 2*alone.kvCapacity {
		t.Errorf("speed %v and KV %v of one, %v and %v of both", alone.decodeSpeed, alone.kvCapacity, together.decodeSpeed, together.kvCapacity)
	}
}

// A server that discovery says drains is on its way out: it does none of the work that is
// planned for, and scaling in must not choose it for another one. One that an operator lets
// drain stays, but has nothing to do for another reason than that nothing waits.
func TestLook_WhoDrainsIsNotReady(t *testing.T) {
	fleet := newFleet(t, pools.Prefill, pools.Decode, pools.Decode)
	see := func() (g poolState, mayGo int) {
		g = sumUp(hardwareOf(fleet.Servers(), model, workload{prompt: 1000, computed: 1000, output: 100, itl: 50 * time.Millisecond}, time.Now()))
		return g, len(unitsOf(fleet.Servers(), &PoolWant{Role: pools.Decode, Any: true}, model, nil, time.Now()))
	}
	if g, mayGo := see(); g.prefill.Ready != 1 || g.decode.Ready != 2 || g.idlePrefill != 1 || mayGo != 2 {
		t.Fatalf("%d (%d idle) and %d are ready, %d may go; want 1 (1), 2 and 2", g.prefill.Ready, g.idlePrefill, g.decode.Ready, mayGo)
	}
	var specs []pools.Spec
	drains := make(map[pools.Role]bool)
	for _, s := range fleet.Servers() {
		if s.Role == pools.Prefill {
			fleet.SetDrain(s.ID(), true)
		}
		spec := s.Spec
		spec.Drain, drains[s.Role] = !drains[s.Role], true // the first of each role
		specs = append(specs, spec)
	}
	if g, _ := see(); g.prefill.Ready != 1 || g.idlePrefill != 0 {
		t.Errorf("an operator lets it drain: %d is ready, %d idle", g.prefill.Ready, g.idlePrefill)
	}
	if err := fleet.Apply(specs); err != nil {
		t.Fatal(err)
	}
	if g, mayGo := see(); g.prefill.Ready != 0 || g.decode.Ready != 1 || mayGo != 1 {
		t.Errorf("%d and %d are ready, %d may go; one of each role drains", g.prefill.Ready, g.decode.Ready, mayGo)
	}
}

// Engines that grow in place are counted by their ranks, and a size is wanted of each.
func TestPools_ElasticEnginesHaveASize(t *testing.T) {
	for _, of := range []struct {
		wanted, engines, units, size int
	}{
		{12, 0, 12, 0}, // pods
		{12, 1, 1, 12},
		{13, 2, 2, 7},
		{0, 2, 0, 0}, // none at all
	} {
		w := PoolWant{Want: sizing.Want{Servers: of.wanted}, Engines: of.engines}
		if units, size := w.sized(); units != of.units || size != of.size {
			t.Errorf("%d ranks on %d engines: %d of size %d, want %d of %d", of.wanted, of.engines, units, size, of.units, of.size)
		}
	}
	state := State{Hardware: []Hardware{{Role: pools.Decode, Engines: 2}, {Role: pools.Decode, Variant: "other", Engines: 1}, {Role: pools.Prefill}}}
	if n := state.engines(pools.Decode); n != 3 {
		t.Errorf("%d engines, want 3", n)
	}
	if n := state.engines(pools.Prefill); n != 0 {
		t.Errorf("%d of the prefill engines grow in place", n)
	}
}

// What waits on servers takes the time that these need for it.
func TestHardware_BacklogIsTimeOfItsServers(t *testing.T) {
	prefill := Hardware{Role: pools.Prefill, servers: 3, Backlog: 6} // seconds of all three
	decode := Hardware{Role: pools.Decode, servers: 2, Waiting: 3, Speed: 150}
	none := Hardware{Role: pools.Decode, servers: 1, Waiting: 3}
	for _, of := range []struct {
		k    *Hardware
		want float64
	}{{&prefill, 2}, {&decode, 2}, {&none, 0}} {
		if of.k.count(workload{output: 100}); of.k.Backlog != of.want {
			t.Errorf("%v: %g s, want %g", of.k.Role, of.k.Backlog, of.want)
		}
	}
}
