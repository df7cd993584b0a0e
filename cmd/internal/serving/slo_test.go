package serving

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// What a user does who has given two models two objectives, and asks why: each request is
// judged by the nearest, by whatever name it came.
func TestSLO_EachModelHasItsOwn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{config: func(cfg *config) {
		withKeys(t, "sk-plain tenant=a", "sk-bought tenant=b ttft-slo=700ms", "sk-trusted tenant=c ttft-slo=700ms may-set=[objectives]")(cfg)
		for _, model := range []string{"big", "small"} {
			for i, role := range []string{engine.RolePrefill, engine.RoleDecode} {
				e := startTestEngine(t, role, func(cfg *engine.Config) {
					cfg.Model = model
					if model == "big" {
						cfg.Adapters = []string{"sql", "law"}
					}
				})
				cfg.servers[i].add(serverEntry{URL: e.URL(), Connector: "nixl"})
			}
		}
		cfg.pd.ttft, cfg.pd.itl = []string{"2s", "big=5s", "sql=1s"}, []string{"big=80ms"}
		cfg.gateway.aliases = []string{"chat=big"}
		if err := cfg.validate(); err != nil {
			t.Fatal(err)
		}
	}})
	eventually(t, "all servers are up", func() bool {
		for _, s := range c.node.fleet.Servers() {
			if !s.Health().Up {
				return false
			}
		}
		return len(c.node.fleet.Servers()) == 4
	})
	for _, x := range []struct {
		name, key, model, asked string
		want                    string
	}{
		{"its model's", "sk-plain", "big", "", "first token wanted within 5000 ms; gaps of at most 80 ms"},
		{"that of all", "sk-plain", "small", "", "first token wanted within 2000 ms"},
		{"that of the model behind an alias", "sk-plain", "chat", "", "first token wanted within 5000 ms; gaps of at most 80 ms"},
		{"its adapter's", "sk-plain", "sql", "", "first token wanted within 1000 ms; gaps of at most 80 ms"},
		{"its base model's", "sk-plain", "law", "", "first token wanted within 5000 ms; gaps of at most 80 ms"},
		{"a header that the key may not set", "sk-plain", "big", "100", "first token wanted within 5000 ms; gaps of at most 80 ms"},
		{"its key's", "sk-bought", "big", "", "first token wanted within 700 ms; gaps of at most 80 ms"},
		{"its header's", "sk-trusted", "big", "100", "first token wanted within 100 ms; gaps of at most 80 ms"},
	} {
		headers := []string{"Authorization", "Bearer " + x.key}
		if x.asked != "" {
			headers = append(headers, "X-Tandem-Ttft-Slo-Ms", x.asked)
		}
		got := c.post("/v1/completions", fmt.Sprintf(`{"model":%q,"max_tokens":4,"prompt":%q}`, x.model, longPrompt), headers...)
		if got.status != 200 {
			t.Fatalf("%s: status %d: %s", x.name, got.status, got.body)
		}
		_, table := c.explained(got.header.Get("X-Request-Id"))
		if !strings.Contains(table, "\n"+x.want+"\n") {
			t.Errorf("%s:\n%s", x.name, table)
		}
	}
}
