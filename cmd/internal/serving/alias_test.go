package serving

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/gateway"
	"github.com/tandem-gateway/tandem/loadtest/engine"
)

func TestAlias_StandsForModelsByWeight(t *testing.T) {
	c := newCluster(t, shape{config: func(cfg *config) {
		for _, model := range []string{"old", "new"} {
			e := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) { cfg.Model = model })
			cfg.servers[2].add(serverEntry{URL: e.URL()})
		}
		cfg.gateway.Aliases = []gateway.Alias{
			{Name: "chat", Targets: []gateway.Target{{Model: "old", Weight: 3}, {Model: "new", Weight: 1}, {Model: "absent", Weight: 100}}},
			{Name: "gone", Targets: []gateway.Target{{Model: "absent", Weight: 1}}},
		}
	}})
	eventually(t, "both models are served", func() bool { return len(c.node.fleet.Models()) == 2 })
	ask := func(model, user string) answer {
		return c.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":2,"user":%q,"messages":[{"role":"user","content":"hi"}]}`, model, user))
	}
	served := make(map[string]int)
	for i := range 80 {
		got := ask("chat", fmt.Sprint("user ", i))
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		served[gjson.Get(got.body, "model").String()]++
	}
	if served["old"] < 40 || served["new"] < 5 || served["old"]+served["new"] != 80 {
		t.Errorf("served by %v", served)
	}
	first := gjson.Get(ask("chat", "one").body, "model").String()
	for range 5 {
		if got := gjson.Get(ask("chat", "one").body, "model").String(); got != first {
			t.Errorf("the same user was served by %s and %s", first, got)
		}
	}
	if got := ask("gone", ""); got.status != 404 {
		t.Errorf("an alias of nothing: %d %s", got.status, got.body)
	}
	listed := c.raw(http.MethodGet, c.base+"/v1/models").body
	if !gjson.Get(listed, `data.#(id=="chat")`).Exists() || gjson.Get(listed, `data.#(id=="gone")`).Exists() {
		t.Errorf("listed are %s", listed)
	}
	if got := c.raw(http.MethodGet, c.base+"/v1/models/chat"); got.status != 200 {
		t.Errorf("the alias by itself: %d %s", got.status, got.body)
	}
}
