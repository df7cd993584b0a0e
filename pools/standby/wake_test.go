package standby

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-gateway/tandem/pools"
)

// A server that was to sleep and did not, because a request stayed for too long or the engine
// refused, takes requests again; and the next one that wants its GPUs tries anew.
func TestWake_AnOccupantThatDidNotFallAsleepServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pools.Default()
		cfg.Sleep.MinAwake, cfg.Sleep.Timeout = 0, 10*time.Second
		log := slog.New(slog.DiscardHandler)
		f := pools.NewFleet(cfg, log)
		defer f.Close()
		var specs []pools.Spec
		for _, url := range []string{"http://10.0.0.1:1", "http://10.0.0.2:1"} {
			specs = append(specs, pools.Spec{URL: url, Role: pools.Decode, GPUs: "shared"})
		}
		if err := f.Apply(specs); err != nil {
			t.Fatal(err)
		}
		engines, held := new(obeying), new(occupancy)
		for i, s := range f.Servers() {
			s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
			s.GPUShare().Observe(i > 0, s.GPUShare().Version(), time.Now())
		}
		occupant, sleeper := f.Servers()[0], f.Servers()[1]
		wake := func(s *pools.Server) error {
			c := &wakeController{engine: engine{s, &http.Client{Transport: engines}}, cfg: cfg.Sleep, held: held, log: log}
			return c.wake(t.Context())
		}
		serves := func(when string, s *pools.Server) {
			t.Helper()
			if s.Asleep() {
				t.Errorf("%s: %s rests", when, s.ID())
			}
			prepared(t, s, "m").Release()
		}

		lease := prepared(t, occupant, "m")
		if err := wake(sleeper); !errors.Is(err, errOccupied) {
			t.Errorf("a request is at work: %v", err)
		}
		engines.took(t, "a request is at work")
		serves("a request stayed for too long", occupant)
		lease.Release()

		engines.refuses = "/sleep"
		if err := wake(sleeper); err == nil {
			t.Error("two are awake on the same GPUs")
		}
		engines.took(t, "the engine does not sleep")
		serves("the engine did not sleep", occupant)

		engines.refuses = ""
		if err := wake(sleeper); err != nil {
			t.Error(err)
		}
		engines.took(t, "at last", "10.0.0.1 /sleep", "10.0.0.2 /wake_up")
		serves("it was woken", sleeper)
		if !occupant.Asleep() {
			t.Error("the occupant does not sleep")
		}
		if err := wake(occupant); err != nil {
			t.Error(err)
		}
		engines.took(t, "and back", "10.0.0.2 /sleep", "10.0.0.1 /wake_up")
		serves("it was woken again", occupant)
	})
}

// An idle server that the engine does not let sleep takes requests, and is tried again.
func TestSleepIdle_AServerThatDidNotFallAsleepServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := pools.Default()
		cfg.Sleep.MinAwake, cfg.Sleep.Idle = 0, time.Minute
		log := slog.New(slog.DiscardHandler)
		f := pools.NewFleet(cfg, log)
		defer f.Close()
		if err := f.Apply([]pools.Spec{{URL: "http://10.0.0.1:1", Role: pools.Decode, GPUs: "shared"}}); err != nil {
			t.Fatal(err)
		}
		s, engines := f.Servers()[0], &obeying{refuses: "/sleep"}
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.GPUShare().Observe(false, s.GPUShare().Version(), time.Now())
		c := &wakeController{engine: engine{s, &http.Client{Transport: engines}}, cfg: cfg.Sleep, held: new(occupancy), log: log}
		time.Sleep(2 * time.Minute)
		for range 2 {
			c.sleepIdle(t.Context(), time.Now())
			engines.took(t, "it refuses")
			if s.Asleep() {
				t.Error("it rests for ever")
			}
		}
		engines.refuses = ""
		c.sleepIdle(t.Context(), time.Now())
		engines.took(t, "it does not any more", "10.0.0.1 /sleep")
		if !s.Asleep() {
			t.Error("it does not sleep")
		}
	})
}
