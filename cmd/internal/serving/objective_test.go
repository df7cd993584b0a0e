package serving

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools"
)

// One of two decode servers is near and has a batch, the other is far and idle. Served for
// latency a request goes to the idle one, which gives its tokens sooner; for throughput to the
// batch, where it costs the fewest.
func TestObjective_ThroughputFillsBatchesAndLatencySpreads(t *testing.T) {
	t.Parallel()
	var near, far *engine.Engine
	c := newCluster(t, shape{config: func(cfg *config) {
		real := func(cfg *engine.Config) { cfg.TimeScale = 1 }
		p := startTestEngine(t, engine.RolePrefill, real)
		near, far = startTestEngine(t, engine.RoleDecode, real), startTestEngine(t, engine.RoleDecode, real)
		cfg.servers[0].add(serverEntry{URL: p.URL(), Connector: "nixl", Rack: "r1"})
		cfg.servers[1].add(serverEntry{URL: near.URL(), Connector: "nixl", Rack: "r1"})
		cfg.servers[1].add(serverEntry{URL: far.URL(), Connector: "nixl", Rack: "r2"})
		cfg.cost.links[cost.SameZone].BytesPerSecond = 0.4e9 // 0.2 s for the prompt
		cfg.access.TrustHeaders = true
		cfg.pools.ProbeInterval = time.Second // the batch is forgotten after three without an answer
		cfg.pd.objectives = []string{"latency", "class:batch=throughput"}
		if err := cfg.validate(); err != nil {
			t.Fatal(err)
		}
	}})
	batch(t, near, 40)
	eventually(t, "the gateway knows of the batch", func() bool {
		for _, s := range c.node.fleet.Servers() {
			if s.Role == pools.Decode && s.URL == near.URL() {
				return s.Load().Running.Known && s.Load().Running.Value >= 40
			}
		}
		return false
	})
	for i, x := range []struct {
		class string
		want  *engine.Engine
	}{{"batch", near}, {"standard", far}} {
		body := strings.NewReplacer("Story 1", fmt.Sprint("Tale ", i), `"max_tokens":4,`, `"max_tokens":200,`).Replace(promptOf(1, ""))
		got := c.post("/v1/chat/completions", body, "X-Tandem-Priority", x.class)
		if got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		_, table := c.explained(got.header.Get("X-Request-Id"))
		if "http://"+got.header.Get("X-Tandem-Decode") != x.want.URL() {
			t.Errorf("class %s went to %s, want %s\n%s", x.class, got.header.Get("X-Tandem-Decode"), x.want.URL(), table)
		}
	}
}

// batch gives an engine so many streams that last for the test, from others than the gateway.
func batch(t *testing.T, e *engine.Engine, streams int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	client := newTestClient(t)
	var open sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		open.Wait()
	})
	body := fmt.Sprintf(`{"model":%q,"prompt":"on","max_tokens":5000,"ignore_eos":true,"stream":true}`, testModel)
	for range streams {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		open.Go(func() { readResponse(resp) })
	}
}
