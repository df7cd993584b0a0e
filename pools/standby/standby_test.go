package standby

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// watchedFleet is a fleet made ready by Watch, whose servers are up and awake as told.
func watchedFleet(t *testing.T, change func(*pools.Config), engines *obeying, awake int, specs ...pools.Spec) *pools.Fleet {
	t.Helper()
	cfg := pools.Default()
	cfg.Sleep.MinAwake = 0
	if change != nil {
		change(&cfg)
	}
	f := pools.NewFleet(cfg, slog.New(slog.DiscardHandler))
	t.Cleanup(f.Close)
	Watch(f, nil, engines, slog.New(slog.DiscardHandler))
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	for i, s := range f.Servers() {
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.GPUShare().Observe(i >= awake, s.GPUShare().Version(), time.Now())
	}
	synctest.Wait()
	return f
}

// await claims a place and waits until the server is ready for the model.
func await(t *testing.T, s *pools.Server, model string) (*pools.Lease, error) {
	t.Helper()
	lease, err := s.Claim(pools.Decode, curve.Work{}, true, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lease.Release)
	if ready := lease.Prepare(model); ready != nil {
		return lease, ready(t.Context())
	}
	return lease, nil
}

func sharing(urls ...string) (specs []pools.Spec) {
	for _, url := range urls {
		specs = append(specs, pools.Spec{URL: url, Role: pools.Decode, GPUs: "a"})
	}
	return specs
}

// A server is made ready for what requests ask of it where adapters are named, or where it
// shares GPUs, each without the other; and what is idle is unloaded or put to sleep.
func TestWatch_RequestsAreServedAndWhatIsIdleEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engines := new(obeying)
		f := watchedFleet(t, func(c *pools.Config) {
			c.Adapters.Directory, c.Adapters.Idle = []pools.Adapter{{Name: "ada", Path: "/ada"}, {Name: "eve", Path: "/eve"}}, time.Minute
		}, engines, 1, pools.Spec{URL: "http://10.0.0.1:1", Role: pools.Decode})
		for _, name := range []string{"ada", "eve"} {
			lease, err := await(t, f.Servers()[0], name)
			if err != nil {
				t.Error(err)
			}
			lease.Release()
		}
		engines.took(t, "adapters", "10.0.0.1 /v1/load_lora_adapter ada", "10.0.0.1 /v1/load_lora_adapter eve")
		time.Sleep(time.Minute + 2*idleInterval)
		synctest.Wait()
		engines.took(t, "idle adapters", "10.0.0.1 /v1/unload_lora_adapter ada", "10.0.0.1 /v1/unload_lora_adapter eve")

		f = watchedFleet(t, func(c *pools.Config) { c.Sleep.Idle = time.Minute }, engines, 1, sharing("http://10.0.0.1:1", "http://10.0.0.2:1")...)
		for _, s := range []*pools.Server{f.Servers()[1], f.Servers()[0]} {
			lease, err := await(t, s, "m")
			if err != nil {
				t.Error(err)
			}
			lease.Release()
		}
		engines.took(t, "shared GPUs", "10.0.0.1 /sleep", "10.0.0.2 /wake_up", "10.0.0.2 /sleep", "10.0.0.1 /wake_up")
		time.Sleep(time.Minute + 2*idleInterval)
		synctest.Wait()
		engines.took(t, "an idle server", "10.0.0.1 /sleep")
	})
}

// A server with nothing to be made ready for is not followed.
func TestWatch_AServerOfItsOwnIsNotFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := watchedFleet(t, nil, new(obeying), 1, pools.Spec{URL: "http://10.0.0.1:1", Role: pools.Decode})
		s := f.Servers()[0]
		s.WakeRequests().Ask()
		synctest.Wait()
		s.GPUs = "a" // as a later configuration would
		s.GPUShare().RecordSleep()
		if _, err := await(t, s, "m"); err == nil {
			t.Error("it was woken")
		}
	})
}

// A server whose entry in the configuration changes is made ready on, also for what waits for it meanwhile, and is not
// refused for what the change cut short.
func TestWatch_AServerWhoseEntryChangesIsMadeReadyOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			hangs, first, then string
			server             int
		}{
			"loads": {"/v1/load_lora_adapter", "ada", "eve", 0},
			"wakes": {"/wake_up", "m", "m", 1},
		} {
			engines := &obeying{hangs: c.hangs}
			specs := sharing("http://10.0.0.1:1", "http://10.0.0.2:1")
			f := watchedFleet(t, func(c *pools.Config) {
				c.Adapters.Directory = []pools.Adapter{{Name: "ada", Path: "/ada"}, {Name: "eve", Path: "/eve"}}
			}, engines, 1, specs...)
			before := make(chan error, 1)
			go func() {
				_, err := await(t, f.Servers()[c.server], c.first)
				before <- err
			}()
			synctest.Wait()
			engines.hangs = ""
			for i := range specs {
				specs[i].Rack = "r1"
			}
			if err := f.Apply(specs); err != nil {
				t.Fatal(err)
			}
			if err := <-before; err != nil {
				t.Errorf("%s: what was asked before: %v", name, err)
			}
			if _, err := await(t, f.Servers()[c.server], c.then); err != nil {
				t.Errorf("%s: what is asked behind it: %v", name, err)
			}
		}
	})
}

// When a server leaves the fleet, what waits for it fails, and nothing more is asked of it.
func TestWatch_WhatWaitsFailsWhenTheServerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			hangs  string
			models []string
		}{"loads": {"/v1/load_lora_adapter", []string{"ada", "eve"}}, "wakes": {"/wake_up", []string{"m"}}} {
			engines := &obeying{hangs: c.hangs}
			f := watchedFleet(t, func(c *pools.Config) {
				c.Adapters.Directory = []pools.Adapter{{Name: "ada", Path: "/ada"}, {Name: "eve", Path: "/eve"}}
			}, engines, 1, sharing("http://10.0.0.1:1", "http://10.0.0.2:1")...)
			s := f.Servers()[1]
			if name == "loads" {
				s = f.Servers()[0]
			}
			failed := make(chan error, len(c.models))
			for _, model := range c.models {
				go func() {
					_, err := await(t, s, model)
					failed <- err
				}()
			}
			synctest.Wait()
			if len(failed) > 0 {
				t.Fatalf("%s: %v", name, <-failed)
			}
			f.Close()
			for range c.models {
				if err := <-failed; err == nil {
					t.Errorf("%s: it is ready, of a fleet that is closed", name)
				}
			}
			if _, err := await(t, s, c.models[0]); err == nil {
				t.Errorf("%s: it is ready for one that comes later", name)
			}
			if engines.hung != 1 {
				t.Errorf("%s: asked of it %d times, want once", name, engines.hung)
			}
		}
	})
}

// One server after the other changes on GPUs that are shared; on others they do not wait.
func TestOccupancy_OneAtATimeOnTheSameGPUs(t *testing.T) {
	var o occupancy
	for round := range 2 {
		free, err := o.take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := o.take(t.Context(), "b")
		if err != nil {
			t.Errorf("round %d: other GPUs: %v", round, err)
		}
		other()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := o.take(gone, "a"); err == nil {
			t.Errorf("round %d: two at a time", round)
		}
		free()
	}
}
