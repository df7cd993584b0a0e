package standby

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// What an engine was doing when it was asked may have been this gateway's own request,
// which has ended since.
func TestAdapterManager_ItsOwnWorkThatTheEngineReportsIsNotAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pools.Default()
		cfg.Adapters.Directory = []pools.Adapter{{Name: "ada", Path: "/ada"}}
		f := pools.NewFleet(cfg, slog.New(slog.DiscardHandler))
		defer f.Close()
		if err := f.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Decode}}); err != nil {
			t.Fatal(err)
		}
		s := f.Servers()[0]
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}, {ID: "ada", Parent: "m"}}, time.Now())
		m := adapterManager{engine: engine{server: s}, cfg: cfg.Adapters}
		start := time.Now()
		at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
		lease, err := s.Claim(pools.Decode, curve.Work{}, false)
		if err != nil {
			t.Fatal(err)
		}
		if await := lease.Prepare("ada"); await != nil {
			t.Fatal("an adapter that is there is waited for")
		}
		if m.idle([]string{"ada"}, at(5)) != nil {
			t.Error("an adapter that a lease holds is idle")
		}
		time.Sleep(10 * time.Millisecond)
		lease.Release()
		for asked, idle := range map[int]bool{5: true, 15: false} {
			s.ReportLoad(load.Load{At: at(20), Adapters: load.Adapters{Running: []string{"ada"}, Known: true, Asked: at(asked)}})
			if got := slices.Contains(m.idle([]string{"ada"}, at(30)), "ada"); got != idle {
				t.Errorf("used until 10 ms, seen at work by who asked at %d ms: idle is %v", asked, got)
			}
		}
	})
}

// What a lease holds stays, though it was asked for before all others and long ago: neither
// another adapter nor its idleness takes its place until the lease has ended.
func TestAdapterManager_WhatALeaseHoldsIsNotUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pools.Default()
		cfg.Adapters.PerServer, cfg.Adapters.Idle = 2, time.Minute
		var models []pools.Model
		for _, name := range []string{"ada", "bob", "eve"} {
			cfg.Adapters.Directory = append(cfg.Adapters.Directory, pools.Adapter{Name: name, Path: "/" + name})
		}
		models = append(models, pools.Model{ID: "m"}, pools.Model{ID: "ada", Parent: "m"}, pools.Model{ID: "bob", Parent: "m"})
		log := slog.New(slog.DiscardHandler)
		f := pools.NewFleet(cfg, log)
		defer f.Close()
		if err := f.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Decode}}); err != nil {
			t.Fatal(err)
		}
		s, engines := f.Servers()[0], new(obeying)
		s.ProbePassed(s.Health(), models, time.Now())
		m := adapterManager{engine: engine{s, &http.Client{Transport: engines}}, cfg: cfg.Adapters, log: log}

		long := prepared(t, s, "ada")
		time.Sleep(10 * time.Minute)
		prepared(t, s, "bob").Release()
		if err := m.load(t.Context(), "eve"); err != nil {
			t.Fatal(err)
		}
		engines.took(t, "room for eve", "10.0.0.1 /v1/unload_lora_adapter bob", "10.0.0.1 /v1/load_lora_adapter eve")

		short := prepared(t, s, "eve")
		if err := m.load(t.Context(), "bob"); !errors.Is(err, errAdapterRoom) {
			t.Errorf("both are held, and there is room: %v", err)
		}
		time.Sleep(10 * time.Minute)
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "while both are held")

		long.Release()
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "ada was in use until now")
		time.Sleep(2 * time.Minute)
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "one has ended", "10.0.0.1 /v1/unload_lora_adapter ada")
		short.Release()
		time.Sleep(2 * time.Minute)
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "the other one too", "10.0.0.1 /v1/unload_lora_adapter eve")
	})
}
