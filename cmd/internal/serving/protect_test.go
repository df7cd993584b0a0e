package serving

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// newPrompt is a completion whose prompt is so many token ids that no other has.
func newPrompt(seed uint64, count int) string {
	rng := rand.New(rand.NewPCG(seed, 0))
	return askWithIDs(2, count, func(int) int { return 100 + rng.IntN(1000) })
}

// Where prompts come again that every server has lost, those that are new stay away from half of the decode servers. What
// came before may go to all.
func TestProtect_NewPromptsWhereMuchIsLost(t *testing.T) {
	t.Parallel()
	for name, protects := range map[string]bool{"as by default": true, "switched off": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fewBlocks := func(cfg *engine.Config) { cfg.Blocks, cfg.MaxModelLen = 520, 4096 } // for four prompts
			c := newCuttingCluster(t, 1, 2, fewBlocks, func(cfg *config) {
				inPieces(cfg)
				cfg.pd.Pieces = cost.Pieces(time.Hour) // prompts are computed whole
				cfg.pd.ProtectKV = cfg.pd.ProtectKV && protects
				believe(cfg, 1/computing)
				assumeSlowLinks(cfg)
			})
			ask := func(seed uint64) answer {
				t.Helper()
				got := c.post("/v1/completions", newPrompt(seed, 2048))
				if got.status != 200 {
					t.Fatalf("%d %s", got.status, got.body)
				}
				return got
			}
			eventually(t, "the engine's events come", func() bool {
				ask(1000)
				return c.metric("tandem_kv_index_blocks", `tier="gpu"`) > 0
			})
			// A share is told of a hundred prompts, from when servers have said what they hold: on a busy machine that is later.
			for round := 0; round < 4 || round < 12 && c.metric("tandem_kv_lost_share") == 0; round++ {
				for seed := range uint64(28) {
					ask(seed)
				}
				eventually(t, "engines have said what they evicted", func() bool { return c.metric("tandem_kv_index_blocks", `tier="guessed"`) == 0 })
			}
			if lost := c.metric("tandem_kv_lost_share"); lost < 0.2 || lost > 0.9 { // less on a busy machine, where evictions are known later
				t.Errorf("a share of %.2f of prompts was lost", lost)
			}
			cost := func(seed uint64) (most float64) {
				d, _ := c.explained(ask(seed).header.Get("X-Request-Id"))
				for _, e := range d.Attempts[0].Alternatives {
					most = max(most, e.Eviction)
					if e.Chosen && e.Eviction > 0 {
						t.Errorf("prompt %d went to a server that is protected: %+v", seed, d.Attempts[0].Alternatives)
					}
				}
				return most
			}
			for seed := range uint64(6) {
				if most := cost(100 + seed); (most > 0) != protects {
					t.Errorf("a new prompt costs %.2f ms more on protected servers", most)
				}
			}
			if most := cost(1); most != 0 {
				t.Errorf("one that came before costs %.2f ms more", most)
			}
		})
	}
}
