package serving

import (
	"bufio"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// With the order of service in the engines' priority field a short prompt passes a longer
// one that came before it, also in the engine's own queue, whichever numbers that takes and serves first.
func TestPolicy_EnginesServeByTheKeyTheyAreSent(t *testing.T) {
	t.Parallel()
	byKey := func(cfg *config) { cfg.pd.binding, cfg.pd.EnginePriority = pd.OnArrival, true }
	scheduler := func(connector string) func(*engine.Config) {
		return func(cfg *engine.Config) {
			cfg.Connector, cfg.TimeScale, cfg.PriorityScheduling, cfg.MaxSeqs = connector, 1, true, 1
		}
	}
	for _, connector := range []string{engine.ConnectorNIXL, engine.ConnectorTRTLLM} {
		t.Run(connector, func(t *testing.T) {
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: scheduler(connector), config: byKey})
			c.sendShorterAndShorter(c.prefill[0])
			eventually(t, "all are in decode", func() bool { return len(requests(c.decode, "/v1/chat/completions")) == 3 })
			var sizes []int // decode's own order is another one
			for _, r := range requests(c.decode, "/v1/chat/completions") {
				sizes = append(sizes, r.BodyBytes)
			}
			// The first was at work when the others came; a busy machine may be later to hand its long body on.
			if behind := slices.DeleteFunc(slices.Clone(sizes), func(n int) bool { return n == slices.Max(sizes) }); !slices.IsSorted(behind) {
				t.Errorf("prompts of %v bytes were prefilled in this order", sizes)
			}
		})
	}
	t.Run("sglang alone", func(t *testing.T) {
		whole := startTestEngine(t, engine.RoleBoth, scheduler(engine.ConnectorSGLang))
		c := newCluster(t, shape{config: func(cfg *config) {
			byKey(cfg)
			cfg.servers[2].add(serverEntry{URL: whole.URL()})
		}})
		eventually(t, "it is up", func() bool { return c.metric("tandem_server_up") == 1 })
		answered := c.sendShorterAndShorter(whole)
		if order := [3]int{<-answered, <-answered, <-answered}; order != [3]int{60, 8, 24} {
			t.Errorf("prompts of %v thousand words were answered in this order", order)
		}
	})
}

// sendShorterAndShorter sends three prompts of so many thousand words, each shorter than the one before it, and returns in
// which order they are answered. The first is at work when the others come to the server that computes them.
func (c *cluster) sendShorterAndShorter(computes *engine.Engine) <-chan int {
	c.t.Helper()
	answered := make(chan int, 3)
	for i, thousands := range []int{60, 24, 8} {
		conn := c.dialRequest(promptOf(thousands, `,"priority":-5`))
		c.t.Cleanup(func() { _ = conn.Close() })
		go func() {
			if status, _ := bufio.NewReader(conn).ReadString('\n'); strings.Contains(status, " 200 ") {
				answered <- thousands
			} else {
				answered <- 0
			}
		}()
		eventually(c.t, "it is there, and the first at work", func() bool {
			return len(requests([]*engine.Engine{computes}, "/v1/chat/completions")) == i+1 && computes.State().KVBlocksUsed > 0
		})
	}
	return answered
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
