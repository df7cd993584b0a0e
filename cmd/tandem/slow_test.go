package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A decode server whose steps come to take three times as long is seen within fifty
// requests, and hardly used from then on.
func TestLearned_ASlowDecodeServerIsAvoided(t *testing.T) {
	t.Parallel()
	for try := 1; slowed(t) > 2; try++ {
		if try == 3 { // on a busy machine steps take as long as it is busy
			t.Fatal("it was used still, three times")
		}
	}
}

// slowed is how many of twenty requests a decode server gets, of two, which fifty before
// found slow.
func slowed(t *testing.T) (after int) {
	t.Helper()
	c := newCluster(t, shape{prefill: 1, decode: 2, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
	asked := 0
	ask := func(n int) (by map[string]int) {
		t.Helper()
		by = make(map[string]int)
		for range n {
			asked++
			body := strings.NewReplacer("Story 1", fmt.Sprint("Tale ", asked), `"max_tokens":4,`, `"max_tokens":16,`).Replace(promptOf(1, `,"stream":true`))
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
	learning := ask(50)[slow.URL()]
	after = ask(20)[slow.URL()]
	t.Logf("it had %d of 20 requests, %d of 50 while it was found out, and %d of 20 from then on", used[slow.URL()], learning, after)
	return after
}

// While it is slow it costs a request now and then to know that it still is; once it has
// healed it has its share again.
func TestLearned_ASlowServerIsTriedNowAndThenAndUsedWhenItHasHealed(t *testing.T) {
	for name, role := range map[string]string{"prefill": engine.RolePrefill, "decode": engine.RoleDecode} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const forgetting, watched = time.Second, 10 * time.Second // a minute in life: seconds here are minutes there
			s := shape{prefill: 2, decode: 1, config: func(cfg *config) { cfg.pools.Forgetting = forgetting }}
			s.engine = func(cfg *engine.Config) { cfg.TimeScale = 1 }
			header, output, slower := "X-Tandem-Prefill", 2, 3.0
			if role == engine.RoleDecode {
				s.prefill, s.decode = 1, 2
				header, output, slower = "X-Tandem-Decode", 16, 6.0 // three times steps of 6 ms is what a busy machine makes of them, too
			}
			c := newCluster(t, s)
			servers := append(c.prefill, c.decode...)
			slow := servers[1]
			asked := 0
			ask := func() bool {
				t.Helper()
				asked++
				body := strings.NewReplacer("Story 1", fmt.Sprint("Tale ", asked), `"max_tokens":4,`, fmt.Sprintf(`"max_tokens":%d,`, output)).Replace(promptOf(1, `,"stream":true`))
				got := c.post("/v1/chat/completions", body)
				if got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
				return "http://"+got.header.Get(header) == slow.URL()
			}
			of := func(requests int) (it int) {
				for range requests {
					if ask() {
						it++
					}
				}
				return it
			}
			of(20)
			slow.SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: slower})
			// Where twenty requests take seconds one of them is a trial.
			eventuallyIn(t, 90*time.Second, "it is avoided", func() bool { return of(20) <= 1 })

			tried, requests := 0, 0
			for from := time.Now(); time.Since(from) < watched; requests++ {
				if ask() {
					tried++
				}
			}
			slow.ClearFaults()
			healed := time.Now()
			eventuallyIn(t, 3*time.Minute, "it has its share again", func() bool { return of(20) >= 4 })
			t.Logf("while it was slow it had %d of %d requests in %v; its share was back %v after it healed",
				tried, requests, watched, time.Since(healed).Round(100*time.Millisecond))
			if tried > 6 {
				t.Errorf("while it was slow it had %d of %d requests", tried, requests)
			}
		})
	}
}

// Who is refused teaches nothing: a fleet that was too slow for every deadline would never be
// known to be well again.
func TestLearned_AFleetThatRefusedAllForATimeServesAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 3 },
		config: func(cfg *config) { cfg.door.Deadline = time.Second },
	})
	asked := 0
	served := func(requests int) (served int) {
		for range requests {
			asked++
			got := c.post("/v1/chat/completions", strings.Replace(promptOf(2, `,"stream":true`), "Story 2", fmt.Sprint("Tale ", asked), 1))
			if got.status != 200 && got.status != 503 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			if got.status == 200 {
				served++
			}
		}
		return served
	}
	served(10)
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 8})
	eventuallyIn(t, 90*time.Second, "nobody is let in", func() bool { return served(3) == 0 })
	c.prefill[0].ClearFaults()
	healed := time.Now()
	eventuallyIn(t, 90*time.Second, "all are served again", func() bool { return served(3) == 3 })
	t.Logf("all were served again %v after it healed", time.Since(healed).Round(100*time.Millisecond))
}
