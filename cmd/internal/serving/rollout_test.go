package serving

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/pools"
)

// A rollout of new weights through both pools, one server after the other, while
// clients ask: nothing fails, and every answer is all of the one or all of the other.
func TestRollout_OfWeightsMixesNoVersions(t *testing.T) {
	t.Parallel()
	pace := func(weights string) func(*engine.Config) {
		return func(cfg *engine.Config) {
			cfg.Weights, cfg.TimeScale, cfg.LoadFailure = weights, 0.05, engine.LoadFailureFail
		}
	}
	var cfg config
	c := newCluster(t, shape{prefill: 2, decode: 2, engine: pace("v1"), config: func(given *config) {
		for i := range given.servers {
			for k := range given.servers[i].specs {
				given.servers[i].specs[k].Weights = "v1"
			}
		}
		cfg = *given
	}})
	prompt := func(i int) string {
		return fmt.Sprintf(`{"model":%q,"max_tokens":12,"ignore_eos":true,"stream":%v,"messages":[{"role":"user","content":"%d %s"}]}`, testModel, i%2 == 0, i%7, longPrompt)
	}
	truth := make(map[string][7]string)
	for _, weights := range []string{"v1", "v2"} {
		alone := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Weights = weights })
		var all [7]string
		for i := range all {
			all[i] = askEngine(t, alone, "/v1/chat/completions", prompt(i)).text()
		}
		truth[weights] = all
	}

	var asked atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for client := range 6 {
		clients.Go(func() {
			for i := client; ; i += 6 {
				select {
				case <-stop:
					return
				default:
				}
				got := c.post("/v1/chat/completions", prompt(i))
				if text := got.text(); got.status != 200 || got.err != nil || text != truth["v1"][i%7] && text != truth["v2"][i%7] {
					t.Errorf("%d %v: %.300s", got.status, got.err, got.body)
				}
				asked.Add(1)
			}
		})
	}
	var retired, replaced []*engine.Engine
	for i, old := range slices.Concat(c.prefill, c.decode) {
		role := []string{engine.RolePrefill, engine.RoleDecode}[i/2]
		fresh := startTestEngine(t, role, pace("v2"))
		replaced = append(replaced, fresh)
		specs := cfg.servers[i/2].specs
		at := slices.IndexFunc(specs, func(s pools.Spec) bool { return s.URL == old.URL() })
		specs = slices.Clone(specs)
		specs[at].Drain = true
		cfg.servers[i/2].specs = append(specs, pools.Spec{URL: fresh.URL(), Role: specs[at].Role, Connector: "nixl", Weights: "v2"})
		if err := c.node.reload(cfg); err != nil {
			t.Fatal(err)
		}
		before := asked.Load()
		eventually(t, "the new one is up, and the old one has nothing left", func() bool {
			s := old.State()
			return c.metric("tandem_server_up") == 5 && s.ServerLoad+s.HandoffsOpen == 0 && asked.Load() > before+20
		})
		cfg.servers[i/2].specs = slices.Delete(slices.Clone(cfg.servers[i/2].specs), at, at+1)
		if err := c.node.reload(cfg); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the old one is gone", func() bool { return old.State().ServerLoad == 0 })
		retired = append(retired, old)
		_ = old.Close()
	}
	close(stop)
	clients.Wait()
	t.Logf("%d requests", asked.Load())
	for name, engines := range map[string][]*engine.Engine{"v1": retired, "v2": replaced} {
		if n := sum(engines, func(s engine.State) int { return s.LoadFailures + s.Recomputed + s.HandoffsRejected }); n != 0 {
			t.Errorf("%s: %d hand-offs did not fit", name, n)
		}
		if n := sum(engines, func(s engine.State) int { return s.HandoffsPulled }); n == 0 {
			t.Errorf("%s: no pair ran", name)
		}
	}
}

// A server that comes back at its address with other weights holds nothing of what the
// old one held: neither what its events told nor what it was sent.
func TestRollout_BlocksOfOldWeightsAreNoHits(t *testing.T) {
	t.Parallel()
	for _, tokens := range []string{"engine", "approximate"} {
		t.Run(tokens, func(t *testing.T) {
			p := startWithPorts(t, engine.RolePrefill)
			d := startWithPorts(t, engine.RoleDecode)
			c := newClusterOf(t, []*engine.Engine{p}, []*engine.Engine{d}, tokens, nil)
			asked := 0
			hits := func() (most int64) {
				asked++
				id := fmt.Sprintf("ask-%d", asked)
				if got := c.post("/v1/chat/completions", chatBody(""), "X-Request-Id", id); got.status != 200 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				for _, a := range gjson.Get(c.get("/debug/decisions/"+id).body, "attempts.0.alternatives").Array() {
					most = max(most, a.Get("prefill_cached").Int(), a.Get("decode_cached").Int())
				}
				return most
			}
			eventually(t, "the prompt is known to be held", func() bool { return hits() > 0 })
			next := c.cfg
			for i, old := range []*engine.Engine{c.prefill[0], c.decode[0]} {
				state := old.State()
				_ = old.Close()
				startTestEngine(t, state.Role, func(cfg *engine.Config) {
					cfg.Weights, cfg.Listen = "v2", state.URL[len("http://"):]
					cfg.EventsEndpoint, cfg.ReplayEndpoint = anywhere(state.EventsEndpoints[0]), anywhere(state.ReplayEndpoints[0])
				})
				next.servers[i].specs = slices.Clone(next.servers[i].specs)
				next.servers[i].specs[0].Weights = "v2"
			}
			if err := c.node.reload(next); err != nil {
				t.Fatal(err)
			}
			eventually(t, "both are up", func() bool {
				return c.metric("tandem_server_up") == 2 && (tokens == "approximate" || c.listens(2))
			})
			if n := hits(); n != 0 {
				t.Errorf("%d tokens of the old weights count as held", n)
			}
			eventually(t, "what the new ones hold counts", func() bool { return hits() > 0 })
		})
	}
}

// startWithPorts starts an engine that publishes, at ports which are its own even while it is
// down: the system gives them to no process.
func startWithPorts(t *testing.T, role string) *engine.Engine {
	t.Helper()
	free, err := process.FreeAddresses(3)
	if err != nil {
		t.Fatal(err)
	}
	return startTestEngine(t, role, func(cfg *engine.Config) {
		cfg.TimeScale, cfg.Listen = computing, free[0]
		cfg.EventsEndpoint, cfg.ReplayEndpoint = anywhere("tcp://"+free[1]), anywhere("tcp://"+free[2])
	})
}

// anywhere binds the port of an endpoint.
func anywhere(endpoint string) string {
	return "tcp://*" + endpoint[strings.LastIndex(endpoint, ":"):]
}

// listens reports whether the gateway hears as many sources.
func (c *cluster) listens(n int) bool { return len(c.node.locality.Index.Sources()) == n }

// askEngine asks an engine without a gateway.
func askEngine(t *testing.T, e *engine.Engine, path, body string) answer {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testTimeout}
	resp, err := client.Post(e.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return readResponse(resp)
}
