package autoscale

import (
	"context"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tandem-gateway/tandem/autoscale/demand"
	"github.com/tandem-gateway/tandem/autoscale/sizing"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

func TestConfig_Validate(t *testing.T) {
	for _, of := range []struct {
		name   string
		change func(*Config)
		valid  bool
	}{
		{"as it comes", func(*Config) {}, true},
		{"no time between decisions", func(c *Config) { c.Every = 0 }, false},
		{"no cold start", func(c *Config) { c.ColdStart = 0 }, false},
		{"no objective", func(c *Config) { c.ITL.All = 0 }, false},
		{"no objective of a model", func(c *Config) { c.ITL.Models = map[string]time.Duration{"m": 0, "n": time.Second} }, false},
		{"one of a model", func(c *Config) { c.ITL.Models = map[string]time.Duration{"m": 1} }, true},
		{"a planner that cannot be", func(c *Config) { c.Planner.Use = 2 }, false},
		{"no prior", func(c *Config) { c.Prior = sizing.Capacity{} }, false},
	} {
		c := testConfig()
		of.change(&c)
		if err := c.Validate(); (err == nil) != of.valid {
			t.Errorf("%s: %v", of.name, err)
		}
	}
}

// Each role is published as a whole, and each kind of hardware where it is chosen.
func TestDecision_Wanted(t *testing.T) {
	at := newClock().Now()
	plan := sizing.Plan{Known: true, Prefill: sizing.Want{Servers: 3, Reason: sizing.Demand}, Decode: sizing.Want{Servers: 5, Reason: sizing.KV}}
	whole := &Decision{At: at, Plan: plan, WaitingForCapacity: 2, Pools: []PoolWant{
		{Role: pools.Prefill, Any: true, Want: plan.Prefill}, {Role: pools.Decode, Any: true, Want: sizing.Want{Servers: 6, Reason: sizing.Draining}},
	}}
	want := []Wanted{
		{Model: "m", Role: "prefill", Want: sizing.Want{Servers: 3, Reason: sizing.Demand}, WaitingForCapacity: 2, At: at},
		{Model: "m", Role: "decode", Want: sizing.Want{Servers: 6, Reason: sizing.Draining}, WaitingForCapacity: 2, At: at},
	}
	if got := whole.wanted("m"); !reflect.DeepEqual(got, want) {
		t.Errorf("one kind: %+v", got)
	}
	kinds := &Decision{At: at, Plan: plan, Pools: []PoolWant{
		{Role: pools.Prefill, Variant: "a", Want: sizing.Want{Servers: 3, Reason: sizing.Demand}},
		{Role: pools.Decode, Variant: "a", Want: sizing.Want{Servers: 1, Reason: sizing.KV}}, {Role: pools.Decode, Variant: "b", Want: sizing.Want{Servers: 4, Reason: sizing.KV}},
	}}
	want = []Wanted{
		{Model: "m", Role: "prefill", Variant: "a", Want: sizing.Want{Servers: 3, Reason: sizing.Demand}, At: at},
		{Model: "m", Role: "decode", Variant: "a", Want: sizing.Want{Servers: 1, Reason: sizing.KV}, At: at},
		{Model: "m", Role: "decode", Variant: "b", Want: sizing.Want{Servers: 4, Reason: sizing.KV}, At: at},
		{Model: "m", Role: "prefill", Want: sizing.Want{Servers: 3, Reason: sizing.Demand}, At: at},
		{Model: "m", Role: "decode", Want: sizing.Want{Servers: 5, Reason: sizing.KV}, At: at},
	}
	if got := kinds.wanted("m"); !reflect.DeepEqual(got, want) {
		t.Errorf("two kinds: %+v", got)
	}
}

// sharing is a scaler that meets others in a Redis.
func sharing(t *testing.T, r *redisserver.Server, name string, fleet *pools.Fleet, log *slog.Logger) *Scaler {
	t.Helper()
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	shared := NewShared(client, "test:", name)
	return NewScaler(testConfig(), fleet, demand.NewMeter(shared.Now), shared, log)
}

// Whatever of a decision Redis does not take part in, nothing is decided, and the step says so.
func TestScaler_AStepThatFailsSaysSo(t *testing.T) {
	fleet := newFleet(t)
	for _, of := range []struct {
		name, says string
		hinder     func(*redisserver.Server)
	}{
		{"which replica decides cannot be read", "which replica decides", func(r *redisserver.Server) { r.Do("HSET", "test:"+deciderKey, "a", "b") }},
		{"the plans cannot be read", "read plans", func(r *redisserver.Server) { r.Do("HSET", "test:"+plansKey, "a", "b") }},
		{"demand cannot be told", "share demand", func(r *redisserver.Server) { r.Do("SET", "test:"+demandKey, "a") }},
		{"plans cannot be told", "publish plans", func(r *redisserver.Server) { r.Do("ACL", "SETUSER", "default", "-publish") }},
		{"the time cannot be read", "time of replicas", func(r *redisserver.Server) { r.Do("ACL", "SETUSER", "default", "-time") }},
	} {
		r := redisserver.Start(t)
		s := sharing(t, r, "a", fleet, slog.New(slog.DiscardHandler))
		of.hinder(r)
		if err := s.step(t.Context(), true); err == nil || !strings.Contains(err.Error(), of.says) || !s.current.Load().At.IsZero() {
			t.Errorf("%s: %v, decided at %v", of.name, err, s.current.Load().At)
		}
	}
	r := redisserver.Start(t)
	s := sharing(t, r, "a", fleet, slog.New(slog.DiscardHandler))
	r.Kill()
	if err := s.follow(t.Context()); err == nil {
		t.Error("it follows no replica, and does not say so")
	}
}

// The log says once that decisions stand still, and once that they go on; what drained takes
// requests again when what was decided is too old.
func TestScaler_RunWithoutItsRedis(t *testing.T) {
	r, fleet := redisserver.Start(t), newFleet(t)
	var log testlog.Buffer
	s := sharing(t, r, "a", fleet, slog.New(slog.NewTextHandler(&log, nil)))
	s.cfg.Every, s.cfg.ScaleIn, s.cfg.Planner.MaxAge = 50*time.Millisecond, true, 200*time.Millisecond
	var mu sync.Mutex // guards drained
	drained := 0
	s.OnDraining = func([]DrainingUnit) {
		mu.Lock()
		defer mu.Unlock()
		drained++
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer stop()
	// On a busy machine a step may fail while Redis is there.
	stops := func() int { return strings.Count(log.String(), "stand still") }
	goesOn := func() bool { return strings.Count(log.String(), "go on") == stops() }
	eventually(t, "it decides", func() bool { return !s.current.Load().At.IsZero() })
	r.Kill()
	eventually(t, "it says that it stands still", func() bool { return !goesOn() })
	last, said := s.current.Load().At, stops()
	eventually(t, "what was decided is undone, again and again", func() bool {
		mu.Lock()
		defer mu.Unlock()
		if s.now().Sub(last) < s.cfg.Planner.MaxAge {
			drained = 0
		}
		return drained > 2
	})
	if n := stops() - said; n != 0 || goesOn() || s.current.Load().At != last {
		t.Errorf("said %d times more, goes on: %v, decided anew: %v", n, goesOn(), s.current.Load().At != last)
	}
	r.Restart()
	eventually(t, "it goes on", func() bool { return goesOn() && s.current.Load().At.After(last) })
}

// A replica that may read plans and make none follows what another one decides, and does not say that its own decisions go on.
func TestScaler_PlansThatCanBeReadEndNoStandstill(t *testing.T) {
	r, fleet := redisserver.Start(t), newFleet(t)
	r.Do("ACL", "SETUSER", "reader", "on", "nopass", "~*", "&*", "+@all", "-eval", "-evalsha")
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{r.Addr()}, Username: "reader", Password: "any", MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	var log testlog.Buffer
	shared := NewShared(client, "test:", "reader")
	s := NewScaler(testConfig(), fleet, demand.NewMeter(shared.Now), shared, slog.New(slog.NewTextHandler(&log, nil)))
	s.cfg.Every = time.Second
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	defer running.Wait()
	defer stop()
	eventually(t, "it says that it stands still", func() bool { return strings.Contains(log.String(), "stand still") })
	other := sharing(t, r, "a", fleet, slog.New(slog.DiscardHandler))
	for range 2 { // what is adopted of the second was read after the first was handled
		before := s.current.Load().At
		eventually(t, "it follows another replica", func() bool {
			return other.step(t.Context(), true) == nil && s.current.Load().At.After(before)
		})
	}
	if said := log.String(); strings.Contains(said, "go on") {
		t.Errorf("it says that decisions go on, and they do not:\n%s", said)
	}
	r.Do("ACL", "SETUSER", "reader", "+eval", "+evalsha")
	eventually(t, "it goes on", func() bool { return strings.Contains(log.String(), "go on") })
}
