package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A decode server whose steps come to take three times as long is seen within fifty
// requests, and hardly used from then on.
func TestLearned_ASlowDecodeServerIsAvoided(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: func(cfg *engine.Config) { cfg.TimeScale = 0.3 }})
	asked := 0
	ask := func(n int) (by map[string]int) {
		t.Helper()
		by = make(map[string]int)
		for range n {
			asked++
			body := strings.NewReplacer("Story 1", fmt.Sprint("Tale ", asked), `"max_tokens":4,`, `"max_tokens":32,`).Replace(promptOf(1, `,"stream":true`))
			got := c.post("/v1/chat/completions", body)
			if got.status != 200 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			by["http://"+got.header.Get("X-Tandem-Decode")]++
		}
		return by
	}
	used, slow := ask(20), c.decode[0] // the one that is used most
	if used[c.decode[1].URL()] > used[slow.URL()] {
		slow = c.decode[1]
	}
	slow.SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 3})
	learning, after := ask(50)[slow.URL()], ask(20)[slow.URL()]
	t.Logf("it had %d of 20 requests, %d of 50 while it was found out, and %d of 20 from then on", used[slow.URL()], learning, after)
	if after > 2 {
		t.Errorf("it had %d of 20 requests", after)
	}
}
