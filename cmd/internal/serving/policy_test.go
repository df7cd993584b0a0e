package serving

import (
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// With the order of service in the engines' priority field a short prompt passes a longer
// one that came before it, also in the engine's own queue.
func TestPolicy_EnginesServeByTheKeyTheyAreSent(t *testing.T) {
	c := newCluster(t, shape{
		prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale, cfg.PriorityScheduling, cfg.MaxSeqs = 1, true, 1 },
		config: func(cfg *config) { cfg.pd.binding, cfg.pd.EnginePriority = pd.OnArrival, true },
	})
	for i, thousands := range []int{60, 24, 8} {
		conn := c.dialRequest(promptOf(thousands, `,"priority":-5`))
		defer func() { _ = conn.Close() }()
		eventually(t, "it is there, and the first at work", func() bool {
			return len(requests(c.prefill, "/v1/chat/completions")) == i+1 && c.prefill[0].State().KVBlocksUsed > 0
		})
	}
	eventually(t, "all are in decode", func() bool { return len(requests(c.decode, "/v1/chat/completions")) == 3 })
	var sizes []int
	for _, r := range requests(c.decode, "/v1/chat/completions") {
		sizes = append(sizes, r.BodyBytes)
	}
	if !(sizes[1] < sizes[2] && sizes[2] < sizes[0]) {
		t.Errorf("prompts of %v bytes were prefilled in this order", sizes)
	}
}

func TestPolicy_EachServes(t *testing.T) {
	t.Parallel()
	for _, rule := range []cost.Rule{cost.Joint, cost.PrefillFirst, cost.LeastLoad, cost.RoundRobin, cost.Random} {
		t.Run(string(rule), func(t *testing.T) {
			c := newCluster(t, shape{prefill: 2, decode: 2, config: func(cfg *config) {
				cfg.pd.binding, cfg.cost.Rule, cfg.cost.PairsFirst = pd.OnArrival, rule, true
			}})
			used := make(map[string]bool)
			for range 24 {
				got := c.post("/v1/chat/completions", chatBody(""))
				if got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
				used[got.header.Get("X-Tandem-Prefill")+" "+got.header.Get("X-Tandem-Decode")] = true
			}
			if rule == cost.Random && len(used) < 3 {
				t.Errorf("at random only %v", used)
			}
		})
	}
}
