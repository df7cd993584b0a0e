package serving

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
)

const loadPath = "/v1/load_lora_adapter"

// withAdapters lets names be loaded on demand.
func withAdapters(names ...string) func(*config) {
	return func(cfg *config) {
		for _, name := range names {
			cfg.pools.Adapters.Directory = append(cfg.pools.Adapters.Directory, pools.Adapter{Name: name, Path: "/adapters/" + name})
		}
	}
}

// askFor sends a prompt that is long enough to be disaggregated.
func (c *cluster) askFor(model string) answer {
	c.t.Helper()
	return c.post("/v1/completions", fmt.Sprintf(`{"model":%q,"max_tokens":4,"prompt":%q}`, model, longPrompt))
}

func loads(engines []*engine.Engine) int {
	return sum(engines, func(s engine.State) int { return s.RequestsByPath[loadPath] })
}

func having(engines []*engine.Engine, adapter string) int {
	return sum(engines, func(s engine.State) int {
		if slices.Contains(s.Adapters, adapter) {
			return 1
		}
		return 0
	})
}

func TestAdapters_AreLoadedOnDemandWhereTheRequestGoes(t *testing.T) {
	c := newCluster(t, shape{prefill: 2, decode: 2, config: withAdapters("sql", "law")})
	listed := c.raw(http.MethodGet, c.base+"/v1/models").body
	for _, name := range []string{"sql", "law"} {
		if got := gjson.Get(listed, fmt.Sprintf(`data.#(id=="%s").parent`, name)).String(); got != testModel {
			t.Errorf("%s is listed with the parent %q in %s", name, got, listed)
		}
	}
	for range 5 {
		if got := c.askFor("sql"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	// Both legs need it.
	if p, d := having(c.prefill, "sql"), having(c.decode, "sql"); p < 1 || d < 1 {
		t.Errorf("%d prefill and %d decode servers have it", p, d)
	}
	if n := having(c.prefill, "law") + having(c.decode, "law"); n != 0 {
		t.Errorf("%d servers have what no request asked for", n)
	}
	if got := c.askFor("unlisted"); got.status != 404 {
		t.Errorf("an adapter that is not in the directory: %d %s", got.status, got.body)
	}
	if n := c.metric("tandem_adapter_loads_total", `outcome="loaded"`); int(n) != loads(c.prefill)+loads(c.decode) {
		t.Errorf("the metric counts %v loads", n)
	}
	// Each leg that did not load it found it: two of each request, unless decode ran alone.
	hits, misses := c.metric("tandem_adapter_requests_total", `outcome="hit"`), c.metric("tandem_adapter_requests_total", `outcome="miss"`)
	if legs := 10 - c.metric("tandem_aggregated_requests_total", ""); int(misses) != loads(c.prefill)+loads(c.decode) || hits != legs-misses {
		t.Errorf("%v legs, of which %v found the adapter and %v did not", legs, hits, misses)
	}
	if took := c.metric("tandem_adapter_load_seconds_sum", ""); took <= 0 {
		t.Errorf("loads took %v s", took)
	}
}

func TestAdapters_TheOneUnusedForLongestMakesWay(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		withAdapters("a", "b", "c")(cfg)
		cfg.pools.Adapters.PerServer = 2
	}})
	for _, name := range []string{"a", "b", "a", "c"} {
		if got := c.askFor(name); got.status != 200 {
			t.Fatalf("%s: %d %s", name, got.status, got.body)
		}
	}
	for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		if got := strings.Join(e.State().Adapters, " "); got != "a c" {
			t.Errorf("%s has %q", e.State().Role, got)
		}
	}
}

func TestAdapters_IdleOnesAreUnloaded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		withAdapters("a")(cfg)
		cfg.pools.Adapters.Idle = 50 * time.Millisecond
	}})
	if got := c.askFor("a"); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	eventually(t, "it is unloaded", func() bool { return having(c.prefill, "a")+having(c.decode, "a") == 0 })
	if got := c.askFor("a"); got.status != 200 {
		t.Errorf("asked for again: %d %s", got.status, got.body)
	}
}

// Between two probes another gateway unloads an adapter that we count on.
func TestAdapters_WhatAnotherGatewayUnloadedIsNoFault(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withAdapters("a")})
	for range 4 {
		if got := c.askFor("a"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		for _, e := range slices.Concat(c.prefill, c.decode) {
			_ = e.UnloadAdapter("a") // not all have it
		}
	}
}

func TestAdapters_AServerThatCannotLoadIsPassedOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 1, config: withAdapters("a")})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: loadPath})
	for range 6 {
		if got := c.askFor("a"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if n := c.prefill[0].State().RequestsByPath[loadPath]; n > 1 {
		t.Errorf("it was asked %d times in a row", n)
	}
	c.prefill[1].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: loadPath})
	_ = c.decode[0].UnloadAdapter("a")
	eventually(t, "no server can serve it, and the client may come back", func() bool {
		got := c.askFor("a")
		return got.status == 503 && got.header.Get("Retry-After") != ""
	})
}

// Many requests for an adapter that no server has wait for one load of it.
func TestAdapters_ABurstLoadsOnce(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: withAdapters("a"), engine: func(cfg *engine.Config) {
		cfg.TimeScale, cfg.AdapterLoad = 0.01, 5*time.Second
	}})
	results := make(chan int)
	for range 16 {
		go func() { results <- c.askFor("a").status }()
	}
	for range 16 {
		if status := <-results; status != 200 {
			t.Errorf("status %d", status)
		}
	}
	if n := loads(c.prefill) + loads(c.decode); n != 2 {
		t.Errorf("%d loads, want one on each server", n)
	}
}
