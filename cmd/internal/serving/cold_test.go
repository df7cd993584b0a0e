package serving

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// askFromClients sends so many chats with prompts of so many bytes from each of four clients at once,
// and returns how many answers had which status. The first is numbered so.
func (c *cluster) askFromClients(each, bytes, first int, headers ...string) map[int]int {
	const clients, sentence = 4, "the river is deep and the sea is wide, so tell me of the harbour; "
	text := strings.Repeat(sentence, bytes/len(sentence)+1)[:bytes]
	var mu sync.Mutex
	var all sync.WaitGroup
	answers := make(map[int]int)
	for client := range clients {
		all.Go(func() {
			for n := range each {
				prompt := fmt.Sprintf("Story %d: %s", first+client*each+n, text)
				got := c.post(chatPath, fmt.Sprintf(`{"model":%q,"max_tokens":1,"stream":true,"messages":[{"role":"user","content":%q}]}`, testModel, prompt), headers...)
				mu.Lock()
				answers[got.status]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return answers
}

// newUnknownFleet is a gateway before two engines of which it knows nothing. It guesses that a prompt of
// 220 KB takes so many times 3 s; it takes some 0.4 s, and a short one 0.15 s.
func newUnknownFleet(t *testing.T, times float64, maxWait time.Duration) *cluster {
	t.Helper()
	slowSteps := func(cfg *engine.Config) {
		cfg.TimeScale, cfg.StepBase, cfg.MaxBatchedTokens = 0.02, 7500*time.Millisecond, 1<<15
	}
	return newCluster(t, shape{both: 2, engine: slowSteps, config: func(cfg *config) {
		believe(cfg, times)
		cfg.pools.Measured = false
		cfg.pd.queue.MaxWait = maxWait
	}})
}

// Requests that wait behind a long prompt are not refused by a time of it that nothing has shown: neither
// what was guessed of engines, nor what follows from it and from short prompts, some 20 s. They wait for
// less than one, and on a machine that is busy with other tests for less than ten.
func TestCold_NoRequestIsRefusedForATimeThatNothingHasShown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		times   float64 // as long as it would assume is what it guesses
		maxWait time.Duration
		short   int // prompts of each client before
		headers []string
	}{
		"nothing was served":             {times: 16, maxWait: 30 * time.Second},
		"short prompts were served":      {times: 4, maxWait: 15 * time.Second, short: 5},
		"nothing, and a deadline is set": {times: 16, maxWait: time.Hour, headers: []string{"X-Tandem-Deadline-Ms", "30000"}},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := newUnknownFleet(t, c.times, c.maxWait)
			if got := fleet.askFromClients(c.short, 2<<10, 0); got[http.StatusOK] != 4*c.short {
				t.Fatalf("short prompts: %v", got)
			}
			const each = 4
			if got := fleet.askFromClients(each, 220<<10, 1000, c.headers...); !maps.Equal(got, map[int]int{http.StatusOK: 4 * each}) {
				t.Errorf("statuses of long prompts: %v", got)
			}
		})
	}
}
