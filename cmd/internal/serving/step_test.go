package serving

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd"
)

// A step of the engine costs 300 ms whatever is in it, as on a CPU, and twenty short prompts come at
// once. By itself the engine computes the first, and then all others in one step; so it does
// behind the gateway, which sends the others before that step begins, and refuses none for a
// wait that does not come. One prompt a step they would take twenty.
func TestLate_ShortPromptsShareSteps(t *testing.T) {
	t.Parallel()
	const prompts, alone = 20, 3
	slow := func(cfg *engine.Config) { cfg.TimeScale, cfg.StepBase = 1, 300*time.Millisecond }
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: slow, config: func(cfg *config) {
		cfg.pd.binding, cfg.cost.PairsFirst, cfg.pd.queue.MaxWait = pd.Late, true, 5*time.Second
	}})
	ask := func(name string) {
		words := strings.Repeat(name+" story and more of it ", 10)
		got := c.post("/v1/completions", fmt.Sprintf(`{"model":%q,"max_tokens":1,"prompt":%q}`, testModel, words))
		if got.status != 200 {
			t.Errorf("%d: %s", got.status, got.body)
		}
	}
	for i := range alone { // the gateway learns what a step costs
		ask(fmt.Sprint("first", i))
	}
	before := c.prefill[0].State().Steps
	var all sync.WaitGroup
	for i := range prompts {
		all.Go(func() { ask(fmt.Sprint("prompt", i)) })
	}
	all.Wait()
	if n := len(requests(c.prefill, "/v1/completions")); n != alone+prompts {
		t.Errorf("prefill was asked %d times", n)
	}
	steps := c.prefill[0].State().Steps - before
	t.Logf("%d prompts in %d steps", prompts, steps)
	if steps > 5 {
		t.Errorf("%d prompts took %d steps", prompts, steps)
	}
}
