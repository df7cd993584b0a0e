package serving

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
)

// foreignPrompts is how many prompts a burst brings to one engine past the gateway, of some 2,000 tokens each.
const foreignPrompts = 24

// burstWatch is two SGLang servers that both prefill and decode, and what their gateway makes of bursts that
// it did not send.
type burstWatch struct {
	*cluster
	engines []*engine.Engine
	ages    []time.Duration // from when half of a burst is at the engine until the gateway knows
	misled  atomic.Int64    // of the gateway's own requests, those sent to the busy server
	sent    int
}

func watchBursts(t *testing.T, change func(*engine.Config)) *burstWatch {
	w := new(burstWatch)
	for range 2 {
		w.engines = append(w.engines, startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) {
			change(cfg)
			cfg.TimeScale = 1
		}))
	}
	w.cluster = newCluster(t, shape{config: func(cfg *config) {
		for _, e := range w.engines {
			cfg.servers[2].add(serverEntry{URL: e.URL()})
		}
		cfg.pools.ProbeInterval, cfg.pools.Measured = defaultConfig().pools.ProbeInterval, true
	}})
	eventually(t, "both are up", func() bool { return w.metric("tandem_server_up") == 2 })
	return w
}

func (w *burstWatch) serverOf(e *engine.Engine) *pools.Server {
	for _, s := range w.node.fleet.Servers() {
		if s.URL == e.URL() {
			return s
		}
	}
	w.t.Fatal("an engine is no server")
	return nil
}

// outstanding is what the gateway knows of a server's requests; -1: nothing.
func outstanding(s *pools.Server) int {
	l := s.FreshLoad(time.Now())
	if !l.Running.Known || !l.Waiting.Known {
		return -1
	}
	return int(l.Running.Value + l.Waiting.Value)
}

// burst sends one engine many prompts, and the gateway 20 requests a second for a second.
func (w *burstWatch) burst(e *engine.Engine, number int) {
	busy := w.serverOf(e)
	for _, s := range w.node.fleet.Servers() {
		eventually(w.t, "the gateway knows that both are idle", func() bool { return outstanding(s) == 0 })
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	for i := range foreignPrompts {
		body := fmt.Sprintf(`{"model":%q,"max_tokens":50,"ignore_eos":true,"prompt":%q}`, testModel, words(1600, fmt.Sprint(number, i)))
		clients.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
			if err != nil {
				return
			}
			req.Header.Set("Content-Type", "application/json")
			if resp, err := w.client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	eventually(w.t, "the burst is there", func() bool { s := e.State(); return s.Running+s.Waiting >= foreignPrompts/2 })
	began, tick, known := time.Now(), time.NewTicker(5*time.Millisecond), time.Duration(-1)
	defer tick.Stop()
	for i := 0; time.Since(began) < time.Second; i++ {
		if known < 0 && outstanding(busy) >= foreignPrompts/2 {
			known = time.Since(began)
		}
		if i%10 == 0 {
			w.sent++
			clients.Go(func() {
				got := w.post("/v1/completions", fmt.Sprintf(`{"model":%q,"max_tokens":2,"prompt":"%d and %d, in a few words"}`, testModel, number, i))
				if got.header.Get("X-Tandem-Decode") == busy.ID() {
					w.misled.Add(1)
				}
			})
		}
		<-tick.C
	}
	if known < 0 {
		known = time.Second // at least
	}
	w.ages = append(w.ages, known)
}

// What an engine pushes of its load tells of a burst that came past the gateway sooner than polls each second, so
// that fewer of the gateway's own requests go there. With -v it prints what docs/engines-tested.md has.
func TestSGLang_PushedLoadUnderABurst(t *testing.T) {
	polled, pushed := watchBursts(t, sglangEngine), watchBursts(t, says)
	for number := range 6 {
		for _, w := range []*burstWatch{polled, pushed} {
			w.burst(w.engines[number%2], number)
		}
	}
	for name, w := range map[string]*burstWatch{"polled": polled, "pushed": pushed} {
		slices.Sort(w.ages)
		t.Logf("%s: known after %v at the median, %v at most; %d of %d requests went to the busy server", name,
			w.ages[len(w.ages)/2].Round(time.Millisecond), w.ages[len(w.ages)-1].Round(time.Millisecond), w.misled.Load(), w.sent)
	}
	if pushed.ages[3] >= polled.ages[3]/2 || pushed.misled.Load() > polled.misled.Load() {
		t.Error("pushed load is no better than polled")
	}
	if n := pushed.metric("tandem_pushed_loads_total", `outcome="read"`); n == 0 {
		t.Error("nothing was pushed")
	}
}
