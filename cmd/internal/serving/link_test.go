package serving

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// A link that has become slow is noticed after four transfers, and left to those that have
// no other way; its servers go on with others.
func TestLinks_TrafficLeavesASickOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{
		prefill: 2, decode: 2,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) { cfg.cost.PairsFirst = true },
	})
	type link struct{ from, to *engine.Engine }
	prompt := 0
	over := func(requests int) (used map[link]int) {
		used = make(map[link]int)
		for range requests {
			prompt++ // no two begin alike: nothing is found cached
			body := strings.Replace(promptOf(2, ""), "Story 2", fmt.Sprint("Tale ", prompt), 1)
			body = strings.Replace(body, "{", `{"stream":true,`, 1) // the first event tells when the KV was there
			got := c.post("/v1/chat/completions", body)
			if got.status != 200 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			for _, p := range c.prefill {
				for _, d := range c.decode {
					if p.URL() == "http://"+got.header.Get("X-Tandem-Prefill") && d.URL() == "http://"+got.header.Get("X-Tandem-Decode") {
						used[link{p, d}]++
					}
				}
			}
		}
		return used
	}
	well := over(24)
	best := slices.MaxFunc(slices.Collect(maps.Keys(well)), func(a, b link) int { return well[a] - well[b] })
	best.to.SetFault(engine.Fault{Kind: engine.FaultSlowLink, Factor: 200, Peer: best.from.State().EngineID})
	sick := over(80)[best]
	t.Logf("%d of 80 requests went over the sick link", sick)
	if sick > 10 { // a quarter would be its share
		t.Errorf("%d of 80 requests went over the sick link", sick)
	}
}

// A prefill server whose link is slow is found out too where no first event tells when the
// KV was there, and with engines whose legs run together, whose prefill hides the transfer.
func TestLinks_WholeAnswersAndLegsTogetherTeachToo(t *testing.T) {
	for name, connector := range map[string]string{
		"whole": engine.ConnectorNIXL, "sglang": engine.ConnectorSGLang, "mooncake": engine.ConnectorMooncake,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := 0
			c := newCluster(t, shape{prefill: 2, decode: 1, engine: func(cfg *engine.Config) {
				cfg.TimeScale, cfg.Connector = 1, connector
				if started++; started == 1 {
					cfg.LinkBytesPerSecond = 0.2e9 // the first prefill server's
				}
			}})
			sick := 0
			for i := range 50 {
				got := c.post("/v1/chat/completions", strings.Replace(promptOf(2, ""), "Story 2", fmt.Sprint("Tale ", i), 1))
				if got.status != 200 {
					t.Fatalf("status %d: %s", got.status, got.body)
				}
				if "http://"+got.header.Get("X-Tandem-Prefill") == c.prefill[0].URL() {
					sick++
				}
			}
			t.Logf("%d of 50 requests went over the slow link", sick)
			if sick > 12 {
				t.Errorf("%d of 50 requests went over the slow link", sick)
			}
		})
	}
}

// A decode server that fails all it is given looks at first like one with failing links.
// Once a probe request has proved that it is the server, its links are as they were, and it is
// used again as soon as it is well.
func TestLinks_AServerProvedSickTakesTheBlameOffItsLinks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{
		prefill: 1, decode: 2,
		engine: func(cfg *engine.Config) { cfg.TimeScale, cfg.LinkLatency = 1, 30*time.Millisecond },
		config: func(cfg *config) {
			for i := range cfg.cost.links {
				cfg.cost.links[i].Latency = 30 * time.Millisecond
			}
			cfg.pools.Breaker.Ejection, cfg.pools.Breaker.MaxEjection = 100*time.Millisecond, 200*time.Millisecond
			cfg.pools.SlowStart = 100 * time.Millisecond
		},
	})
	sick := c.decode[0]
	id := strings.TrimPrefix(sick.URL(), "http://")
	prompt := 0
	ask := func() (served string) {
		prompt++
		got := c.post("/v1/chat/completions", strings.Replace(chatBodyOf(2, `,"stream":true`), "Two riders", fmt.Sprint("Tale ", prompt), 1))
		if got.status != 200 {
			t.Fatalf("status %d: %s", got.status, got.body)
		}
		return got.header.Get("X-Tandem-Decode")
	}
	sick.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500})
	ejected := func() bool {
		return c.metric("tandem_breaker_state", `leg="decode"`, `server="`+id+`"`) == 2
	}
	eventuallyIn(t, time.Minute, "it is ejected", func() bool { ask(); return ejected() })
	sick.ClearFaults()
	eventually(t, "a probe request proves it", func() bool { return !ejected() })
	used := 0 // were its links still charged it would be tried every few minutes
	eventuallyIn(t, time.Minute, "it is used again", func() bool {
		if ask() == id {
			used++
		}
		return used == 5
	})
}
