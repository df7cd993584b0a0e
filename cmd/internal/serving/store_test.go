package serving

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
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
