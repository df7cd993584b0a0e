package serving

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// turns is a gateway before two models on the same GPUs, the second one asleep.
func turns(t *testing.T, minAwake time.Duration, change func(*config)) (c *cluster, engines [2]*engine.Engine) {
	t.Helper()
	c = newCluster(t, shape{config: func(cfg *config) {
		for i, model := range []string{"day", "night"} {
			e := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Model, cfg.TimeScale = model, 0.5 })
			cfg.servers[2].add(serverEntry{URL: e.URL(), GPUs: "node-1"})
			engines[i] = e
		}
		cfg.pools.Sleep.MinAwake = minAwake
		if change != nil {
			change(cfg)
		}
		(&cluster{t: t, client: newTestClient(t)}).mustPost(fmt.Sprintf("%s/sleep?level=%d", engines[1].URL(), cfg.pools.Sleep.Level))
	}})
	eventually(t, "both models are known, and which server sleeps", func() bool {
		servers := c.node.fleet.Servers()
		awake := c.node.cfg.pools.Sleep.Idle > 0 || !servers[0].Asleep() // an idle one may be asleep again
		return len(c.node.fleet.Models()) == 2 && awake && servers[1].Asleep()
	})
	return c, engines
}

func (c *cluster) mustPost(url string) {
	c.t.Helper()
	if got := c.raw(http.MethodPost, url); got.status != 200 {
		c.t.Fatalf("%s: %d %s", url, got.status, got.body)
	}
}

func (c *cluster) chatWith(model string) answer {
	c.t.Helper()
	return c.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, model))
}

func TestSleep_AQuietModelMakesWay(t *testing.T) {
	c, engines := turns(t, 0, nil)
	for _, model := range []string{"night", "day", "day", "night"} {
		if got := c.chatWith(model); got.status != 200 {
			t.Fatalf("%s: %d %s", model, got.status, got.body)
		}
		day, night := engines[0].State(), engines[1].State()
		if day.Sleeping != (model == "night") || night.Sleeping != (model == "day") {
			t.Errorf("after %s: day sleeps %v, night sleeps %v", model, day.Sleeping, night.Sleeping)
		}
	}
	if n := sum(engines[:], func(s engine.State) int { return s.RequestsByPath["/wake_up"] }); n != 3 {
		t.Errorf("%d wakings for three changes", n)
	}
}

// At level 2 the weights are gone: an engine that is woken without reading them again
// answers garbage.
func TestSleep_DroppedWeightsAreReadAgain(t *testing.T) {
	c, _ := turns(t, 0, func(cfg *config) { cfg.pools.Sleep.Level = 2 })
	for _, model := range []string{"night", "day", "night"} {
		alone := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Model = model })
		body := fmt.Sprintf(`{"model":%q,"max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, model)
		want := askEngine(t, alone, "/v1/chat/completions", body)
		if got := c.post("/v1/chat/completions", body); got.status != 200 || got.text() != want.text() {
			t.Errorf("%s: %d %q, want %q", model, got.status, got.text(), want.text())
		}
	}
}

// An engine that cannot read its weights is not taken for awake.
func TestSleep_AServerThatIsNotWokenServesNothing(t *testing.T) {
	c, engines := turns(t, 0, func(cfg *config) { cfg.pools.Sleep.Level = 2 })
	engines[1].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: "/collective_rpc"})
	if got := c.chatWith("night"); got.status != 503 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := len(requests(engines[1:], "/v1/chat/completions")); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}

// Two busy models on the same GPUs: both are served, never both awake, and they do not
// drive each other out faster than the least time awake.
func TestSleep_BusyModelsTakeTurns(t *testing.T) {
	const minAwake = 200 * time.Millisecond
	c, engines := turns(t, minAwake, nil)
	ctx, stop := context.WithTimeout(t.Context(), 10*minAwake)
	defer stop()
	began := time.Now()
	var clients sync.WaitGroup
	var served [2]atomic.Int64
	for i, model := range []string{"day", "night"} {
		for range 2 {
			clients.Go(func() {
				for ctx.Err() == nil {
					if got := c.chatWith(model); got.status != 200 {
						t.Errorf("%s: %d %s", model, got.status, got.body)
						return
					}
					served[i].Add(1)
				}
			})
		}
	}
	clients.Go(func() {
		for range looks(ctx) {
			// The day is awake before and after, and was not woken between.
			before, night, after := engines[0].State(), engines[1].State(), engines[0].State()
			if !before.Sleeping && !night.Sleeping && !after.Sleeping && before.RequestsByPath["/wake_up"] == after.RequestsByPath["/wake_up"] {
				t.Error("both are awake")
				return
			}
		}
	})
	clients.Wait()
	wakings := sum(engines[:], func(s engine.State) int { return s.RequestsByPath["/wake_up"] })
	t.Logf("served %d and %d, woken %d times in %v", served[0].Load(), served[1].Load(), wakings, time.Since(began))
	if served[0].Load() == 0 || served[1].Load() == 0 {
		t.Errorf("served %d and %d", served[0].Load(), served[1].Load())
	}
	if most := int(time.Since(began)/minAwake) + 1; wakings > most {
		t.Errorf("%d wakings, want %d at most", wakings, most)
	}
}

// looks are moments to look at engines, a thousand a second until the context ends: a
// loop without a pause would take a core from what is looked at.
func looks(ctx context.Context) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil && yield(<-tick.C) {
		}
	}
}

func TestSleep_AnIdleServerGoesToSleep(t *testing.T) {
	t.Parallel()
	c, engines := turns(t, 0, func(cfg *config) { cfg.pools.Sleep.Idle = 50 * time.Millisecond })
	eventually(t, "no server is awake", func() bool { return engines[0].State().Sleeping && engines[1].State().Sleeping })
	if got := c.chatWith("day"); got.status != 200 {
		t.Errorf("woken again: %d %s", got.status, got.body)
	}
}

// A stream runs to its end before its model may sleep.
func TestSleep_WhatRunsIsWaitedFor(t *testing.T) {
	t.Parallel()
	c, engines := turns(t, 0, nil)
	stream := make(chan answer, 1)
	go func() {
		stream <- c.post("/v1/chat/completions", `{"model":"day","max_tokens":600,"min_tokens":600,"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	}()
	eventually(t, "the day is at work", func() bool { return engines[0].State().Running > 0 })
	if got := c.chatWith("night"); got.status != 200 {
		t.Errorf("the night: %d %s", got.status, got.body)
	}
	if got := <-stream; got.err != nil || len(got.events) == 0 || got.events[len(got.events)-1] != "[DONE]" {
		t.Errorf("the stream of the day ended with %v after %d events", got.err, len(got.events))
	}
	if day := engines[0].State(); !day.Sleeping || day.Aborted != 0 {
		t.Errorf("the day sleeps %v, and %d of its requests were aborted", day.Sleeping, day.Aborted)
	}
}

// twoTurns are two gateways on one Redis, in front of two models on the same GPUs.
func twoTurns(t *testing.T, minAwake time.Duration) (redis *redisserver.Server, manager, other *cluster, engines [2]*engine.Engine) {
	t.Helper()
	redis = redisserver.Start(t)
	a, engines := turns(t, minAwake, func(cfg *config) { cfg.redis.addrs = []string{redis.Addr()} })
	eventually(t, "the first gateway manages", a.node.sharing.gpuArbiter.Manages)
	b := newCluster(t, shape{config: func(cfg *config) {
		cfg.redis.addrs = []string{redis.Addr()}
		cfg.pools.Sleep.MinAwake = minAwake
		for _, e := range engines {
			cfg.servers[2].add(serverEntry{URL: e.URL(), GPUs: "node-1"})
		}
	}})
	eventually(t, "the second one knows which server sleeps, and shares its work", func() bool {
		servers := b.node.fleet.Servers()
		return len(b.node.fleet.Models()) == 2 && servers[1].Asleep() && b.metric("tandem_replicas_connected") == 1
	})
	return redis, a, b, engines
}

// Clients of two gateways want both models: they take turns as those of one gateway do,
// and no request of one gateway is cut off by what the other one decides.
func TestSleep_TwoGatewaysAgree(t *testing.T) {
	t.Parallel()
	_, a, b, engines := twoTurns(t, 200*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	var served [2][2]atomic.Int64
	for g, gateway := range []*cluster{a, b} {
		for i, model := range []string{"day", "night"} {
			clients.Go(func() {
				for ctx.Err() == nil {
					got := gateway.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":20,"min_tokens":20,"messages":[{"role":"user","content":"hi"}]}`, model))
					if got.status != 200 {
						t.Errorf("gateway %d, %s: %d %s", g, model, got.status, got.body)
						return
					}
					served[g][i].Add(1)
				}
			})
		}
	}
	clients.Go(func() {
		for range looks(ctx) {
			// The first was awake when the second was looked at, unless it was put to sleep
			// meanwhile.
			first, second, later := engines[0].State(), engines[1].State(), engines[0].State()
			if !first.Sleeping && !second.Sleeping && first.RequestsByPath["/sleep"] == later.RequestsByPath["/sleep"] {
				t.Error("both are awake")
				return
			}
		}
	})
	wakings := func() int {
		return sum(engines[:], func(s engine.State) int { return s.RequestsByPath["/wake_up"] })
	}
	agreed := comesTrue(90*time.Second, func() bool {
		least := min(served[0][0].Load(), served[0][1].Load(), served[1][0].Load(), served[1][1].Load())
		return wakings() >= 5 && least > 0
	})
	stop()
	clients.Wait()
	if !agreed {
		t.Error("they do not take turns so that each gateway serves both models")
	}
	if n := sum(engines[:], func(s engine.State) int { return s.Aborted }); n != 0 {
		t.Errorf("%d requests were cut off", n)
	}
	if a.node.sharing.gpuArbiter.Manages() == b.node.sharing.gpuArbiter.Manages() {
		t.Errorf("both manage, or none")
	}
	t.Logf("served %d %d by the one, %d %d by the other, woken %d times", served[0][0].Load(), served[0][1].Load(), served[1][0].Load(), served[1][1].Load(), wakings())
}

func TestSleep_AnotherGatewayTakesOver(t *testing.T) {
	t.Parallel()
	_, a, b, _ := twoTurns(t, 0)
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"night", "day"} {
		if got := b.chatWith(model); got.status != 200 {
			t.Errorf("%s: %d %s", model, got.status, got.body)
		}
	}
}

// Without Redis no gateway can be asked: the manager goes on, and the other gateway has what
// is awake.
func TestSleep_WithoutRedisOnlyTheManagerActs(t *testing.T) {
	t.Parallel()
	redis, a, b, engines := twoTurns(t, 0)
	redis.Kill()
	eventually(t, "both notice", func() bool {
		return a.metric("tandem_replicas_connected") == 0 && b.metric("tandem_replicas_connected") == 0
	})
	if got := b.chatWith("day"); got.status != 200 {
		t.Errorf("what is awake: %d %s", got.status, got.body)
	}
	if got := b.chatWith("night"); got.status != 503 {
		t.Errorf("what sleeps, of another manager: %d %s", got.status, got.body)
	}
	if got := a.chatWith("night"); got.status != 200 {
		t.Errorf("what sleeps, of the manager: %d %s", got.status, got.body)
	}
	if !engines[0].State().Sleeping || engines[1].State().Sleeping {
		t.Error("they have not changed places")
	}
}
