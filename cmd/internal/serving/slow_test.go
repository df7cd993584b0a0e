package serving

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// patient makes computing take so long, in the engines and in what is believed of them, that
// a machine that is busy with other tests adds little to it.
const patient = 4.0

func patiently(s shape) shape {
	s.engine = func(cfg *engine.Config) { cfg.TimeScale = patient }
	change := s.config
	s.config = func(cfg *config) {
		believe(cfg, patient)
		if change != nil {
			change(cfg)
		}
	}
	return s
}

// A decode server whose steps come to take three times as long is seen within fifty
// requests, and hardly used from then on.
func TestLearned_ASlowDecodeServerIsAvoided(t *testing.T) {
	t.Parallel()
	c := newCluster(t, patiently(shape{prefill: 1, decode: 2}))
	asked := 0
	ask := func(n int) (by map[string]int) {
		t.Helper()
		by = make(map[string]int)
		for range n {
			asked++
			body := fmt.Sprintf(`{"model":%q,"prompt":"Tale %d","max_tokens":6,"ignore_eos":true,"stream":true}`, testModel, asked)
			got := c.post("/v1/completions", body)
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
	for try := 1; ; try++ {
		after := ask(20)[slow.URL()]
		t.Logf("it had %d of 20 requests, %d of 50 while it was found out, and %d of 20 from then on", used[slow.URL()], learning, after)
		if after <= 4 { // half of them would be its share
			return
		}
		if try == 5 { // on a busy machine the other one looks slow at times
			t.Fatal("five times")
		}
	}
}

// While it is slow it costs a request now and then to know that it still is; once it has
// healed it has its share again.
func TestLearned_ASlowServerIsTriedNowAndThenAndUsedWhenItHasRecovered(t *testing.T) {
	for _, x := range []struct {
		role            string
		prefill, decode int
		words, tokens   int           // of a prompt and of its answer
		forgetting      time.Duration // a minute in life: seconds here are minutes there
		header          string
	}{
		{"prefill", 2, 1, 300, 2, time.Second, "X-Tandem-Prefill"},
		{"decode", 1, 2, 1, 3, 3 * time.Second, "X-Tandem-Decode"},
	} {
		t.Run(x.role, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, patiently(shape{prefill: x.prefill, decode: x.decode, config: func(cfg *config) {
				cfg.pools.Forgetting = x.forgetting
			}}))
			asked := 0
			slowThenWell(t, append(c.prefill, c.decode...)[1], x.forgetting, func() (served string) {
				asked++
				body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":%d,"ignore_eos":true,"stream":true}`,
					testModel, strings.Repeat(fmt.Sprintf("Tale%d ", asked), x.words), x.tokens)
				got := c.post("/v1/completions", body)
				if got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
				return "http://" + got.header.Get(x.header)
			})
		})
	}
}

// slowThenWell makes one of two servers slow and then well, and judges which of them serve
// the requests that are asked.
func slowThenWell(t *testing.T, slow *engine.Engine, forgetting time.Duration, ask func() (served string)) {
	const watched = 10 * time.Second
	of := func(requests int) (it int) {
		for range requests {
			if ask() == slow.URL() {
				it++
			}
		}
		return it
	}
	of(20)
	slow.SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 3})
	// Twenty requests take seconds, on a busy machine more of them, so that some are trials.
	eventuallyIn(t, 90*time.Second, "it is avoided", func() bool {
		began := time.Now()
		had := of(20)
		return had <= 2+int(time.Since(began)/(3*forgetting))
	})

	tried, requests := 0, 0
	for from := time.Now(); time.Since(from) < watched; requests++ {
		tried += of(1)
	}
	slow.ClearFaults()
	healed := time.Now()
	eventuallyIn(t, 3*time.Minute, "it has its share again", func() bool { return of(20) >= 4 })
	t.Logf("while it was slow it had %d of %d requests in %v; its share was back %v after it healed",
		tried, requests, watched, time.Since(healed).Round(100*time.Millisecond))
	if tried > 8 { // half of them would be its share
		t.Errorf("while it was slow it had %d of %d requests", tried, requests)
	}
}

// A refused request teaches nothing: a fleet that was too slow for every deadline would never be
// known to be well again.
func TestLearned_AFleetThatRefusedAllForATimeServesAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 6 }, // 0.3 s for the prompt
		config: func(cfg *config) { cfg.access.Deadline = 2 * time.Second },
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
	eventuallyIn(t, 90*time.Second, "no request is let in", func() bool { return served(3) == 0 })
	c.prefill[0].ClearFaults()
	healed := time.Now()
	eventuallyIn(t, 3*time.Minute, "all are served again", func() bool { return served(3) == 3 })
	t.Logf("all were served again %v after it healed", time.Since(healed).Round(100*time.Millisecond))
}
