package serving

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// says has an SGLang publish its KV events and its load, and say where.
func says(cfg *engine.Config) {
	sglangEngine(cfg)
	publishing(cfg)
	cfg.LoadEndpoint = "tcp://*:*"
}

// findsWhatWasPrefilled waits until a prompt is found where it was prefilled.
func findsWhatWasPrefilled(t *testing.T, c *cluster) {
	t.Helper()
	body := `{"model":"test-model","max_tokens":2,"messages":[{"role":"user","content":` + quoted(words(600, "said")) + `}]}`
	eventually(t, "a prompt is found where it was prefilled", func() bool {
		if got := c.post("/v1/chat/completions", body); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		return c.metric("tandem_kv_hit_tokens_total") > 500
	})
}

// Of an SGLang nothing is configured but its address: it says itself where its KV events are, and a
// prompt that was there before is found.
func TestSGLang_SaysWhereItsEventsAre(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 1, engine: says, config: func(cfg *config) { cfg.kv.modes = []string{"engine"} }})
	findsWhatWasPrefilled(t, c)
	for _, s := range c.node.fleet.Servers() {
		if at := s.Published(); at.Events == "" || at.Replay == "" || at.Load == "" || at.Ranks != 1 {
			t.Errorf("%s: %+v", s.ID(), at)
		}
	}
}

// Of a vLLM since 0.32 nothing is configured but its address either.
func TestVLLM_SaysWhereItsEventsAre(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 2, decode: 1, engine: func(cfg *engine.Config) { publishing(cfg); cfg.Version = "0.33.0" }})
	findsWhatWasPrefilled(t, c)
	for _, s := range c.node.fleet.Servers() {
		if at := s.Published(); at.Events == "" || at.Replay == "" || at.Ranks != 1 {
			t.Errorf("%s: %+v", s.ID(), at)
		}
	}
}

// Ranks behind one address are told apart by their ports, whether the server is all of them or one.
func TestVLLM_RanksSayWhereTheirEventsAre(t *testing.T) {
	t.Parallel()
	ports := portsInARow(t, 4)
	e := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) {
		cfg.Version, cfg.DataParallel = "0.33.0", 2
		cfg.EventsEndpoint, cfg.ReplayEndpoint = fmt.Sprintf("tcp://*:%d", ports), fmt.Sprintf("tcp://*:%d", ports+2)
	})
	one := 1
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: e.URL()})
		cfg.servers[2].add(serverEntry{URL: e.URL(), Rank: &one})
	}})
	for _, s := range c.node.fleet.Servers() {
		own, ranks := 0, 2
		if s.Rank != nil {
			own, ranks = 1, 1
		}
		eventually(t, "it is known where it publishes", func() bool { return s.Published().Events != "" })
		if at, want := s.Published(), fmt.Sprintf("tcp://127.0.0.1:%d", ports+own); at.Ranks != ranks || at.Events != want {
			t.Errorf("%s: %+v, want %s", s.ID(), at, want)
		}
	}
}

// The load that SGLang pushes is known though it cannot be polled.
func TestSGLang_PushesItsLoad(t *testing.T) {
	t.Parallel()
	e := startBusyEngine(t, says)
	for _, path := range []string{"/v1/loads", "/metrics"} {
		e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 503, Path: path})
	}
	c := newCluster(t, shape{config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: e.URL()}) }})
	eventually(t, "what it pushes is its load, in tokens too", func() bool {
		l := c.node.fleet.Servers()[0].Load()
		return l.Running.Value == 2 && l.Waiting.Value == 1 && l.WaitingTokens.Value > 100 && l.KVUsed.Known
	})
	if n := c.metric("tandem_pushed_loads_total", `outcome="read"`); n < 1 {
		t.Errorf("%v loads were read", n)
	}
	if n := c.metric("tandem_pushed_loads_total", `outcome="unreadable"`); n != 0 {
		t.Errorf("%v loads were not", n)
	}
}

// Ranks behind one address each push their own load, on ports of their own: the server's is their sum.
func TestSGLang_RanksPushTheirLoads(t *testing.T) {
	t.Parallel()
	e := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) {
		says(cfg)
		cfg.DataParallel = 2
		ports := portsInARow(t, 6)
		for i, to := range []*string{&cfg.EventsEndpoint, &cfg.ReplayEndpoint, &cfg.LoadEndpoint} {
			*to = fmt.Sprintf("tcp://*:%d", ports+2*i)
		}
	})
	e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 503, Path: "/v1/loads"})
	e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 503, Path: "/metrics"})
	c := newCluster(t, shape{config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: e.URL()}) }})
	s := c.node.fleet.Servers()[0]
	eventually(t, "the room of both is known", func() bool {
		l := s.Load()
		return l.KVTokens.Value >= float64(16*(e.State().KVBlocksTotal-1)) && time.Since(l.At) < 5*time.Second
	})
	if at := s.Published(); at.Ranks != 2 {
		t.Errorf("%+v", at)
	}
}
