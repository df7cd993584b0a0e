package serving

import (
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// What one server has put into a store that several share counts for the others: the next turn, on
// a server that never saw the conversation, loads it. A store forgets without a word, which the
// engine's usage shows: then it is not counted on any more.
func TestStore_ASharedOneCountsForAllServers(t *testing.T) {
	t.Parallel()
	kept := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Connector = engine.ConnectorStore }).State().KVAddress
	start := func(role string) *engine.Engine {
		return startTestEngine(t, role, func(cfg *engine.Config) {
			publishing(cfg)
			cfg.TimeScale, cfg.Connector, cfg.Store = computing, engine.ConnectorStore, kept
		})
	}
	c := newClusterOf(t, []*engine.Engine{start(engine.RolePrefill), start(engine.RolePrefill)}, []*engine.Engine{start(engine.RoleDecode)}, "engine", func(cfg *config) {
		for i := range cfg.servers {
			for k := range cfg.servers[i].specs {
				cfg.servers[i].specs[k].Connector = engine.ConnectorStore
			}
		}
	})
	says := func(role, content string) map[string]string {
		return map[string]string{"role": role, "content": content}
	}

	got, history := c.turn([]map[string]string{says("user", longPrompt)})
	home := got.header.Get("X-Tandem-Prefill")
	c.settle(home)
	if drained := c.raw("POST", c.admin+"/drain/"+home); drained.status != 204 {
		t.Fatalf("drain: %d", drained.status)
	}

	// believed is what the server that prefilled was believed to have of a turn's prompt, and found
	// what it had by its own count.
	turn := func(content string) (believed, found int64) {
		t.Helper()
		got, history = c.turn(append(history, says("user", content)))
		server := got.header.Get("X-Tandem-Prefill")
		if server == home || server == "" {
			t.Fatalf("prefilled by %q", server)
		}
		for _, a := range gjson.Get(c.get("/debug/decisions/"+got.header.Get("X-Request-Id")).body, "attempts.0.alternatives").Array() {
			if a.Get("prefill").String() == server {
				believed = max(a.Get("prefill_cached").Int(), a.Get("prefill_disk").Int())
			}
		}
		return believed, gjson.Get(got.body, "usage.prompt_tokens_details.cached_tokens").Int()
	}
	if believed, found := turn("And then?"); believed < 400 || believed != found {
		t.Errorf("another server was believed to have %d tokens, and had %d", believed, found)
	}

	// Of what the store and the server's own cache forget without a word only usage tells; it is
	// computed, put there again, and known again.
	other := c.prefill[0]
	if strings.HasSuffix(other.URL(), home) {
		other = c.prefill[1]
	}
	away := strings.TrimPrefix(other.URL(), "http://")
	c.settle(away)
	for _, call := range [][2]string{{"POST", other.URL() + "/reset_prefix_cache"}, {"DELETE", "http://" + kept + "/sim/kv/store"}} {
		if got := c.raw(call[0], call[1]); got.status != 200 {
			t.Fatalf("%s: %d", call[1], got.status)
		}
	}
	eventually(t, "its own cache is known to be empty", func() bool { return c.known(away) == 0 })
	if believed, found := turn("Go on."); believed < 400 || found != 0 {
		t.Errorf("a store that was emptied was believed to have %d tokens, and had %d", believed, found)
	}
	c.settle(away)
	if believed, found := turn("And?"); believed < 400 || believed < found-32 || believed > found {
		t.Errorf("behind it %d tokens were believed to be there, and %d were", believed, found)
	}
}

// What an engine in connect mode has put into a store is known to each gateway, of which one
// receives from the engine.
func TestStore_OfAnEngineInConnectModeIsKnownToAllReplicas(t *testing.T) {
	t.Parallel()
	free, err := process.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	redis, receiver := redisserver.Start(t).Addr(), "tcp://"+free[0]
	kept := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Connector = engine.ConnectorStore }).State().KVAddress
	start := func(role, events string) *engine.Engine {
		return startTestEngine(t, role, func(cfg *engine.Config) {
			cfg.EventsEndpoint, cfg.Connector, cfg.Store = events, engine.ConnectorStore, kept
		})
	}
	engines := []*engine.Engine{start(engine.RolePrefill, receiver), start(engine.RoleDecode, "")}
	replica := func(name string) *cluster {
		c := newCluster(t, shape{config: func(cfg *config) {
			cfg.redis.addrs, cfg.redis.replica = []string{redis}, name
			cfg.kv.modes = []string{"engine"}
			for i, e := range engines {
				entry := serverEntry{URL: e.URL(), Connector: engine.ConnectorStore}
				if i == 0 {
					entry.Events, entry.EventBind = receiver, true
				}
				cfg.servers[i].add(entry)
			}
		}})
		c.prefill, c.decode = engines[:1], engines[1:]
		eventually(t, name+" has its servers and Redis", func() bool {
			return c.metric("tandem_server_up") == 2 && c.metric("tandem_replicas_connected") == 1
		})
		return c
	}
	a, b := replica("a"), replica("b")
	eventually(t, "one of them receives from the engine", func() bool {
		return a.metric("tandem_kv_receiving")+b.metric("tandem_kv_receiving") == 1
	})
	stored := func(c *cluster) (blocks int) {
		for _, m := range c.node.locality.Index.Models() {
			for _, st := range m.Stores {
				blocks += st.Blocks
			}
		}
		return blocks
	}
	eventually(t, "both know of the same blocks in the store", func() bool {
		a.turn([]map[string]string{{"role": "user", "content": longPrompt + time.Now().String()}})
		return stored(a) > 20 && stored(a) == stored(b)
	})
}
