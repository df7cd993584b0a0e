package serving

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// An engine that is not to show its reasoning says nothing for as long as that takes, nor the ids of any token: it is at
// work all the same, and knows ids.
func TestReasoning_ThatIsHiddenIsNoSilence(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		kind  func(*engine.Config)
		field string
	}{
		"vLLM, not shown":    {saltsMessages, `,"include_reasoning":false`},
		"SGLang, shown late": {sglangEngine, `,"stream_reasoning":false`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tokens = 700 // of 6 ms each: for longer than a first event may take
			thinks := func(cfg *engine.Config) { x.kind(cfg); cfg.ReasoningTokens = tokens }
			body := `{"model":"test-model","max_tokens":720,"ignore_eos":true,"stream":true,"messages":[{"role":"user","content":"` + longPrompt + `"}]` + x.field + `}`
			want := askEngine(t, startTestEngine(t, engine.RoleBoth, thinks), chatPath, body)
			c := newCluster(t, shape{
				prefill: 1, decode: 1, engine: func(cfg *engine.Config) { thinks(cfg); cfg.TimeScale = 1 },
				config: func(cfg *config) { cfg.pd.FirstEventTimeout = 3 * time.Second },
			})
			got := c.post(chatPath, body)
			if got.status != 200 || got.err != nil || got.text() != want.text() || got.text() == "" {
				t.Errorf("%d %v %.300s\nwant %.300s", got.status, got.err, got.body, want.body)
			}
			if shown := strings.Contains(got.body, `"reasoning`); shown != strings.Contains(x.field, "stream") {
				t.Errorf("reasoning is shown: %v", shown)
			}
			if n := c.metric("tandem_retries_total"); n != 0 {
				t.Errorf("%v legs were given up", n)
			}
			for _, s := range c.node.fleet.Servers() {
				if !s.ReportsTokenIDs() {
					t.Errorf("%s is believed to know no token ids", s.ID())
				}
			}
		})
	}
}
