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
	"github.com/tandem-gateway/tandem/pools/load"
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

// controlled is a server on shared GPUs with its controller; the others there are awake.
func controlled(t *testing.T, engines *obeying, change func(*pools.SleepConfig), role pools.Role) (*pools.Fleet, *wakeController) {
	t.Helper()
	cfg := pools.Default()
	change(&cfg.Sleep)
	log := slog.New(slog.DiscardHandler)
	f := pools.NewFleet(cfg, log)
	t.Cleanup(f.Close)
	specs := sharing("http://10.0.0.1:1", "http://10.0.0.2:1")
	specs[1].Role = role
	if err := f.Apply(specs); err != nil {
		t.Fatal(err)
	}
	for i, s := range f.Servers() {
		s.ProbePassed(s.Health(), []pools.Model{{ID: "m"}}, time.Now())
		s.GPUShare().Observe(i == 0, s.GPUShare().Version(), time.Now())
	}
	return f, &wakeController{engine: engine{f.Servers()[0], &http.Client{Transport: engines}}, cfg: cfg.Sleep, held: new(occupancy), log: log}
}

// An occupant keeps its GPUs for as long as it may at least; decodes have time to fetch what
// a prefill server has computed. What waking took is believed from then on.
func TestWake_WhenAnOccupantFallsAsleep(t *testing.T) {
	for role, fetch := range map[pools.Role]time.Duration{pools.Decode: 0, pools.Both: 0, pools.Prefill: fetchTime} {
		synctest.Test(t, func(t *testing.T) {
			engines := new(obeying)
			f, c := controlled(t, engines, func(c *pools.SleepConfig) { c.MinAwake = 30 * time.Second }, role)
			time.Sleep(10 * time.Second)
			engines.during = func() { time.Sleep(3 * time.Second) }
			start := time.Now()
			if err := c.wake(t.Context()); err != nil {
				t.Fatal(err)
			}
			engines.overLast(t)
			engines.took(t, role.String(), "10.0.0.2 /sleep", "10.0.0.1 /wake_up")
			if took := time.Since(start); took != 20*time.Second+fetch+6*time.Second {
				t.Errorf("%s: awake after %v", role, took)
			}
			if asleep, took := f.Servers()[0].GPUShare().Asleep(); asleep || took != 3*time.Second || !f.Servers()[1].Asleep() {
				t.Errorf("%s: asleep %v, woken in %v; the occupant %v", role, asleep, took, f.Servers()[1].Asleep())
			}
		})
	}
}

// A server that does not wake is not taken to be awake; its GPUs are free for others.
func TestWake_AServerThatDoesNotWakeSleepsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for level, refuses := range map[int]string{1: "/wake_up", 2: "/collective_rpc"} {
			engines := &obeying{refuses: refuses}
			f, c := controlled(t, engines, func(c *pools.SleepConfig) { c.MinAwake, c.Level = 0, level }, pools.Decode)
			for range 2 {
				if err := c.wake(t.Context()); err == nil || !f.Servers()[0].Asleep() {
					t.Errorf("level %d: %v, asleep %v", level, err, f.Servers()[0].Asleep())
				}
			}
			engines.refuses = ""
			if err := c.wake(t.Context()); err != nil || f.Servers()[0].Asleep() {
				t.Errorf("level %d: %v, asleep %v", level, err, f.Servers()[0].Asleep())
			}
		}
	})
}

// Only an idle server that is up, shares GPUs, and may sleep is put to sleep.
func TestSleepIdle_WhichServerSleeps(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*pools.SleepConfig, *wakeController)
		idle   time.Duration
		sleeps bool
	}{
		{"idle for long", func(*pools.SleepConfig, *wakeController) {}, time.Minute, true},
		{"not yet", func(*pools.SleepConfig, *wakeController) {}, time.Minute - 1, false},
		{"just awake", func(c *pools.SleepConfig, _ *wakeController) { c.MinAwake = time.Minute + 1 }, time.Minute, false},
		{"awake for as long as it must", func(c *pools.SleepConfig, _ *wakeController) { c.MinAwake = time.Minute }, time.Minute, true},
		{"never", func(c *pools.SleepConfig, _ *wakeController) { c.Idle = 0 }, time.Hour, false},
		{"GPUs of its own", func(_ *pools.SleepConfig, w *wakeController) { w.server.GPUs = "" }, time.Minute, false},
		{"down", func(_ *pools.SleepConfig, w *wakeController) { w.server.MarkDown("refused") }, time.Minute, false},
		{"another gateway manages it", func(_ *pools.SleepConfig, w *wakeController) { w.arbiter = new(Arbiter) }, time.Minute, false},
		{"asleep", func(_ *pools.SleepConfig, w *wakeController) { w.server.GPUShare().RecordSleep() }, time.Minute, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			engines := new(obeying)
			f, w := controlled(t, engines, func(c *pools.SleepConfig) { c.Idle, c.MinAwake = time.Minute, 0 }, pools.Decode)
			w.server = f.Servers()[1]
			time.Sleep(c.idle)
			c.change(&w.cfg, w)
			w.sleepIdle(t.Context(), time.Now())
			var want []string
			if c.sleeps {
				want = []string{"10.0.0.2 /sleep"}
				engines.overLast(t)
			}
			engines.took(t, c.name, want...)
		})
	}
}

// A gateway that does not manage the GPUs asks the one that does, until the server is awake;
// it gives up when there is no gateway to ask, or when it manages itself, since then it is asked
// again.
func TestWake_AnotherGatewayManages(t *testing.T) {
	for name, c := range map[string]struct {
		then func(*Arbiter, *pools.Server)
		want error
	}{
		"the manager wakes it": {func(_ *Arbiter, s *pools.Server) { s.GPUShare().RecordWake(time.Second, time.Now()) }, nil},
		"Redis is away":        {func(a *Arbiter, _ *pools.Server) { a.mu.Lock(); defer a.mu.Unlock(); a.lost = true }, errNotManager},
		"it manages now":       {func(a *Arbiter, _ *pools.Server) { a.mu.Lock(); defer a.mu.Unlock(); a.manages = true }, errOccupied},
		"it is not woken":      {func(*Arbiter, *pools.Server) {}, errOccupied},
	} {
		synctest.Test(t, func(t *testing.T) {
			engines := new(obeying)
			_, w := controlled(t, engines, func(c *pools.SleepConfig) { c.Timeout = time.Minute }, pools.Decode)
			w.arbiter = new(Arbiter)
			result := make(chan error, 1)
			go func() { result <- w.wake(t.Context()) }()
			for round := range 3 {
				time.Sleep(time.Second)
				if wanted := w.arbiter.takeWanted(); !slices.Equal(wanted, []string{"10.0.0.1:1"}) || len(result) > 0 {
					t.Errorf("%s, round %d: it wants %v", name, round, wanted)
				}
			}
			c.then(w.arbiter, w.server)
			if err := <-result; !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			engines.took(t, name)
		})
	}
}

// A server that is to sleep waits for what other gateways have on it: as they report since it
// was decided, and as its engine does, which counts what none of them reports.
func TestOthersDone_AsGatewaysAndTheEngineReport(t *testing.T) {
	decided := time.Now()
	at := func(after time.Duration) time.Time { return decided.Add(after) }
	known := func(v float64) load.Gauge { return load.Gauge{Value: v, Known: true} }
	alone := &Arbiter{round: at(1)}
	for name, c := range map[string]struct {
		arbiter *Arbiter
		load    load.Load
		want    bool
	}{
		"no other gateway takes part":    {nil, load.Load{Running: known(1), At: at(1)}, true},
		"there is none":                  {alone, load.Load{}, true},
		"no round since":                 {&Arbiter{round: decided}, load.Load{}, false},
		"others, reports are too young":  {&Arbiter{others: true, round: at(reportedWithin)}, load.Load{}, false},
		"others, all have reported":      {&Arbiter{others: true, round: at(reportedWithin + 1)}, load.Load{}, true},
		"others use it":                  {&Arbiter{others: true, round: at(time.Minute), used: []string{"a:1", "10.0.0.1:1"}}, load.Load{}, false},
		"others use another one":         {&Arbiter{others: true, round: at(time.Minute), used: []string{"a:1"}}, load.Load{}, true},
		"Redis is away":                  {&Arbiter{lost: true, others: true, used: []string{"10.0.0.1:1"}}, load.Load{}, true},
		"its engine was idle before":     {alone, load.Load{Running: known(0), Waiting: known(0), At: decided}, false},
		"its engine is idle":             {alone, load.Load{Running: known(0), Waiting: known(0), At: at(1)}, true},
		"its engine runs a request":      {alone, load.Load{Running: known(1), Waiting: known(0), At: at(1)}, false},
		"its engine has one that waits":  {alone, load.Load{Running: known(0), Waiting: known(1), At: at(1)}, false},
		"others, and its engine is idle": {&Arbiter{round: decided}, load.Load{Running: known(0), At: at(1)}, false},
	} {
		s := pools.NewServer(sharing("http://10.0.0.1:1")[0])
		s.ReportLoad(c.load)
		if got := (&wakeController{arbiter: c.arbiter}).othersDone(s, decided); got != c.want {
			t.Errorf("%s: done %v", name, got)
		}
	}
}
