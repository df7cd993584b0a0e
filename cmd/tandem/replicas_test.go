package main

import (
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// twoReplicas are two gateways in front of the same engines, on one Redis.
func twoReplicas(t *testing.T, r *redisserver.Server) (a, b *cluster) {
	t.Helper()
	shared := func(cfg *config) {
		cfg.redis.addrs = []string{r.Addr()}
		cfg.pools.ProbeInterval = time.Minute // scraped load must not be what they know each other by
	}
	a = newCluster(t, shape{prefill: 2, decode: 1, config: shared})
	b = newCluster(t, shape{config: func(cfg *config) {
		shared(cfg)
		for i, e := range append(a.prefill, a.decode...) {
			cfg.servers[i/2].add(serverEntry{URL: e.URL()})
		}
	}})
	eventually(t, "both share", func() bool {
		return a.metric("tandem_replicas_connected") == 1 && b.metric("tandem_replicas_connected") == 1
	})
	eventually(t, "both have their servers", func() bool { return b.metric("tandem_server_up") == 3 })
	return a, b
}

func TestReplicas_OneAvoidsTheServerThatTheOtherKeepsBusy(t *testing.T) {
	a, b := twoReplicas(t, redisserver.Start(t))
	a.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	a.prefill[1].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	conn := a.dialRequest(chatBody(""))
	defer func() { _ = conn.Close() }()
	busy := a.prefill[0]
	eventually(t, "a's request hangs in a prefill", func() bool {
		for _, e := range a.prefill {
			if e.State().ServerLoad == 1 {
				busy = e
				return true
			}
		}
		return false
	})
	for _, e := range a.prefill {
		if e != busy {
			e.ClearFaults()
		}
	}
	eventually(t, "b knows", func() bool { return b.metric("tandem_replicas_busy") == 1 })
	for range 10 {
		if got := b.post("/v1/chat/completions", chatBody("")); got.status != 200 || "http://"+got.header.Get("X-Tandem-Prefill") == busy.URL() {
			t.Fatalf("%d, prefill on %s", got.status, got.header.Get("X-Tandem-Prefill"))
		}
	}
}

func TestReplicas_ARedisThatFailsCostsNoRequest(t *testing.T) {
	r := redisserver.Start(t)
	a, _ := twoReplicas(t, r)
	for name, fail := range map[string]struct{ do, heal func() }{
		"hanging": {r.Hang, r.Continue},
		"killed":  {r.Kill, r.Restart},
	} {
		fail.do()
		worst := time.Duration(0)
		for range 20 {
			start := time.Now()
			if got := a.post("/v1/chat/completions", chatBody("")); got.status != 200 {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
			worst = max(worst, time.Since(start))
		}
		if worst > time.Second {
			t.Errorf("%s: a request took %v", name, worst)
		}
		eventually(t, name+" is seen", func() bool { return a.metric("tandem_replicas_connected") == 0 })
		fail.heal()
		eventually(t, name+": sharing again", func() bool { return a.metric("tandem_replicas_connected") == 1 })
	}
}

func TestReplicas_ARedisThatIsAwayAtStartIsNoError(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.redis.addrs = []string{"127.0.0.1:1"} }})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}
