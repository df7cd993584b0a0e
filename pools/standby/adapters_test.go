package standby

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
		lease, err := s.Claim(pools.Decode, curve.Work{}, false, time.Now())
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
				t.Errorf("used until 10 ms, seen at work by a question at %d ms: idle is %v", asked, got)
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

// managed is a server with adapters, whose engine does what it is told, and their manager.
func managed(t *testing.T, change func(*pools.AdapterConfig), has ...string) (*pools.Fleet, *adapterManager, *obeying) {
	t.Helper()
	cfg := pools.Default()
	cfg.Adapters.Directory = []pools.Adapter{{Name: "ada", Path: "/ada"}, {Name: "bob", Path: "/bob"}, {Name: "eve", Path: "/eve"}, {Name: "law", Base: "other", Path: "/law"}}
	if change != nil {
		change(&cfg.Adapters)
	}
	log := slog.New(slog.DiscardHandler)
	f := pools.NewFleet(cfg, log)
	t.Cleanup(f.Close)
	if err := f.Apply([]pools.Spec{{URL: "http://10.0.0.1:8000", Role: pools.Decode}}); err != nil {
		t.Fatal(err)
	}
	models := []pools.Model{{ID: "m"}}
	for _, name := range has {
		models = append(models, pools.Model{ID: name, Parent: "m"})
	}
	s, engines := f.Servers()[0], new(obeying)
	s.ProbePassed(s.Health(), models, time.Now())
	return f, &adapterManager{engine: engine{s, &http.Client{Transport: engines}}, cfg: cfg.Adapters, log: log}, engines
}

// outcomes are the counts of loads as operators see them: loaded, failed, unloaded.
func outcomes(t *testing.T, f *pools.Fleet) (counts [3]float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if i := slices.Index([]string{"loaded", "failed", "unloaded"}, label.GetValue()); i >= 0 && family.GetName() == "tandem_adapter_loads_total" {
					counts[i] = m.GetCounter().GetValue()
				}
			}
		}
	}
	return counts
}

// What is not in the directory, or is of another model, is not asked of the engine; what the
// engine refuses is not served, and counts.
func TestAdapterManager_Load(t *testing.T) {
	f, m, engines := managed(t, nil)
	for _, name := range []string{"law", "stranger"} {
		if err := m.load(t.Context(), name); err == nil {
			t.Errorf("%s is loaded", name)
		}
	}
	engines.took(t, "what does not fit")
	engines.refuses = "/v1/load_lora_adapter"
	if err := m.load(t.Context(), "ada"); err == nil || m.server.Health().Serves("ada") {
		t.Errorf("the engine refuses: %v, served %v", err, m.server.Health().Serves("ada"))
	}
	engines.refuses = ""
	if err := m.load(t.Context(), "ada"); err != nil || !m.server.Health().Serves("ada") {
		t.Errorf("%v, served %v", err, m.server.Health().Serves("ada"))
	}
	engines.overLast(t)
	engines.took(t, "one that fits", "10.0.0.1 /v1/load_lora_adapter ada")
	if got := outcomes(t, f); got != [3]float64{1, 1, 0} {
		t.Errorf("loaded, failed, unloaded: %v", got)
	}
}

// The engine has the configured time for an order.
func TestAdapterManager_AnOrderEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m, engines := managed(t, func(c *pools.AdapterConfig) { c.Timeout = 7 * time.Second })
		engines.hangs = "/v1/load_lora_adapter"
		start := time.Now()
		if err := m.load(t.Context(), "ada"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 7*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// Room is made by unloading those that were not asked for for longest, as many as it takes, and
// none where there is room or any number may stay. If one stays there is no room.
func TestAdapterManager_RoomIsMadeByTheLongestUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for perServer, want := range map[int][]string{
			0: {"load ada"}, 4: {"load ada"}, 3: {"load ada"}, 2: {"unload eve", "load ada"}, 1: {"unload eve", "unload bob", "load ada"},
		} {
			_, m, engines := managed(t, func(c *pools.AdapterConfig) { c.PerServer = perServer }, "bob", "eve", "own")
			for _, name := range []string{"eve", "bob"} {
				prepared(t, m.server, name).Release()
				time.Sleep(time.Minute)
			}
			if err := m.load(t.Context(), "ada"); err != nil {
				t.Error(err)
			}
			var orders []string
			for _, o := range want {
				action, name, _ := strings.Cut(o, " ")
				orders = append(orders, "10.0.0.1 /v1/"+action+"_lora_adapter "+name)
			}
			engines.took(t, fmt.Sprintf("at most %d", perServer), orders...)
		}
		f, m, engines := managed(t, func(c *pools.AdapterConfig) { c.PerServer = 1 }, "bob")
		engines.refuses = "/v1/unload_lora_adapter"
		if err := m.load(t.Context(), "ada"); err == nil {
			t.Error("there is room though the engine unloads nothing")
		}
		engines.took(t, "it unloads nothing")
		if got := outcomes(t, f); got != [3]float64{} {
			t.Errorf("loaded, failed, unloaded: %v", got)
		}
	})
}

// No new request counts on an adapter from when it is being unloaded, also where a probe finds
// it meanwhile.
func TestAdapterManager_WhatIsBeingUnloadedIsNotServed(t *testing.T) {
	f, m, engines := managed(t, nil, "ada")
	s := m.server
	engines.during = func() {
		if s.Health().Serves("ada") {
			t.Error("it is served while it is unloaded")
		}
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}, {ID: "ada", Parent: "m"}}, time.Now())
	}
	if err := m.unload(t.Context(), "ada"); err != nil || s.Health().Serves("ada") || !s.Health().Serves("m") {
		t.Errorf("%v, it is served: %v", err, s.Health().Serves("ada"))
	}
	if got := outcomes(t, f); got != [3]float64{0, 0, 1} {
		t.Errorf("loaded, failed, unloaded: %v", got)
	}
}

// An adapter is unloaded when it was idle for longer than configured, while its server is up.
func TestAdapterManager_UnloadIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			idle, unused time.Duration
			down, want   bool
		}{
			{time.Minute, time.Minute, false, false},
			{time.Minute, time.Minute + 1, false, true},
			{time.Minute, time.Hour, true, false},
			{0, time.Hour, false, false},
		} {
			_, m, engines := managed(t, func(cfg *pools.AdapterConfig) { cfg.Idle = c.idle }, "ada", "own")
			prepared(t, m.server, "ada").Release()
			time.Sleep(c.unused)
			if c.down {
				m.server.MarkDown("connection refused")
			}
			m.unloadIdle(t.Context(), time.Now())
			var want []string
			if c.want {
				want = []string{"10.0.0.1 /v1/unload_lora_adapter ada"}
			}
			engines.took(t, fmt.Sprintf("%+v", c), want...)
		}
	})
}

// An adapter that is on a server again after it was unloaded was loaded by another gateway, which uses it: this one, to
// which no request for it comes, leaves it there for as long as one that it has just used.
func TestAdapterManager_WhatAnotherGatewayLoadsAgainIsNotIdleAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, m, engines := managed(t, func(cfg *pools.AdapterConfig) { cfg.Idle = time.Minute }, "ada")
		prepared(t, m.server, "ada").Release()
		time.Sleep(time.Minute + 1)
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "a minute without a request", "10.0.0.1 /v1/unload_lora_adapter ada")
		m.server.ProbePassed(m.server.Health(), []pools.Model{{ID: "m"}, {ID: "ada", Parent: "m"}}, time.Now())
		m.unloadIdle(t.Context(), time.Now())
		time.Sleep(time.Minute)
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "it is there again")
		time.Sleep(time.Nanosecond)
		m.unloadIdle(t.Context(), time.Now())
		engines.took(t, "and a minute has gone", "10.0.0.1 /v1/unload_lora_adapter ada")
	})
}
