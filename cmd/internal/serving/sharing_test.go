package serving

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/predict"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// learners are gateways that share a Redis and engines in real time, and the prompts they
// are asked, of which no two begin alike: nothing is found cached.
type learners struct {
	*testing.T
	redis   *redisserver.Server
	first   *cluster // that has the engines
	prompts int
}

func newLearners(t *testing.T) *learners {
	l := &learners{T: t, redis: redisserver.Start(t)}
	l.first = newCluster(t, shape{
		prefill: 2, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) { l.shares(cfg, "first") },
	})
	return l
}

func (l *learners) shares(cfg *config, name string) {
	cfg.redis.addrs, cfg.redis.replica = []string{l.redis.Addr()}, name
	cfg.pd.binding = pd.OnArrival         // else one decides for all
	cfg.pools.ProbeInterval = time.Minute // scraped load must not be what they know each other by
}

// replica starts another gateway in front of the same engines.
func (l *learners) replica(name string) *cluster {
	c := newCluster(l.T, shape{config: func(cfg *config) {
		l.shares(cfg, name)
		for i, e := range append(l.first.prefill, l.first.decode...) {
			cfg.servers[i/2].add(serverEntry{URL: e.URL()})
		}
	}})
	eventually(l.T, name+" has its servers", func() bool { return c.metric("tandem_server_up") == 3 })
	return c
}

// warm lets a gateway use both prefill servers.
func (l *learners) warm(c *cluster) {
	for range 10 {
		var pair sync.WaitGroup
		for range 2 {
			body := l.body()
			pair.Go(func() { c.post("/v1/chat/completions", body) })
		}
		pair.Wait()
	}
}

func (l *learners) body() string {
	l.prompts++
	return strings.Replace(promptOf(1, `,"stream":true`), "Story 1", fmt.Sprint("Tale ", l.prompts), 1)
}

// ask sends requests one by one and counts those that a server prefilled.
func (l *learners) ask(c *cluster, n int, server *engine.Engine) (by int) {
	l.Helper()
	for range n {
		got := c.post("/v1/chat/completions", l.body())
		if got.status != 200 {
			l.Fatalf("status %d: %s", got.status, got.body)
		}
		if "http://"+got.header.Get("X-Tandem-Prefill") == server.URL() {
			by++
		}
	}
	return by
}

// believed is how many times as slow as assumed a gateway believes a server's prefill to be.
func (l *learners) believed(c *cluster, server *engine.Engine) float64 {
	l.Helper()
	x := curve.PrefillFeatures(600, 0)
	for _, s := range c.node.fleet.Servers() {
		if "http://"+s.ID() == server.URL() {
			return s.PrefillCurve().Seconds(x) / pools.Default().Prefill.Seconds(x)
		}
	}
	l.Fatalf("%s is not known", server.URL())
	return 0
}

// A server that one replica has seen become slow is avoided by the other, which saw it
// fast, within two seconds; one that starts knows of it before its first request, and so
// does the first, started anew.
func TestSharing_WhatOneReplicaLearnsAllLearn(t *testing.T) {
	l := newLearners(t)
	slow, other := l.first.prefill[0], l.first.prefill[1] // slow is the better one at first
	other.SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 2.5})
	second := l.replica("second")
	eventually(t, "they share", func() bool {
		return l.first.metric("tandem_learned_records")+second.metric("tandem_learned_records") == 2
	})
	l.warm(l.first)
	l.warm(second)
	if n := l.ask(second, 10, slow); n < 8 {
		t.Fatalf("%d of 10 requests to the better server", n)
	}
	slow.ClearFaults()
	slow.SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 8})
	before := l.ask(l.first, 50, slow)
	if before > 35 { // some 20; all of them where nothing is learned
		t.Errorf("%d of 50 requests to a server that became eight times as slow", before)
	}
	// What is avoided is observed no more: first believes it a few percent slower than the other
	// by now, which a request under way on the other outweighs. Two at a time use both servers,
	// until the belief is beyond such a chance.
	l.warm(l.first)
	seen := time.Now()
	// What each believes depends on what it has seen itself, and on how busy the machine is: which
	// of the two servers is the slower one does not.
	knows := func(c *cluster) bool { return l.believed(c, slow) > 1.3*l.believed(c, other) }
	if !knows(l.first) {
		t.Fatalf("it believes the slow server %.2f times as slow as assumed, the other %.2f", l.believed(l.first, slow), l.believed(l.first, other))
	}
	eventually(t, "the other knows", func() bool { return knows(second) })
	t.Logf("%d of 50 requests to the slow server; %v later the other knows", before, time.Since(seen).Round(time.Millisecond))
	if n := l.ask(second, 15, slow); n > 3 {
		t.Errorf("the other sends %d of 15 requests to it", n)
	}

	third := l.replica("third")
	eventually(t, "it has read what the others learned", func() bool { return third.metric("tandem_learned_records") == 2 })
	if !knows(third) {
		t.Errorf("one that starts believes it %.2f times as slow as assumed, the other server %.2f", l.believed(third, slow), l.believed(third, other))
	}
	if n := l.ask(third, 10, slow); n > 2 {
		t.Errorf("one that starts sends %d of its first 10 requests to it", n)
	}
	for _, c := range []*cluster{second, third, l.first} {
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
	}
	anew := l.replica("first")
	eventually(t, "it has read what it learned before", func() bool { return anew.metric("tandem_learned_records") == 3 })
	if !knows(anew) {
		t.Errorf("started anew it believes it %.2f times as slow as assumed, the other server %.2f", l.believed(anew, slow), l.believed(anew, other))
	}
}

// Without Redis each learns by itself.
func TestSharing_WithoutRedisEachLearnsByItself(t *testing.T) {
	l := newLearners(t)
	slow := l.first.prefill[0]
	second := l.replica("second")
	eventually(t, "they share", func() bool { l.ask(l.first, 1, slow); return second.metric("tandem_learned_records") == 1 })
	l.redis.Kill()
	l.warm(second)
	slow.SetFault(engine.Fault{Kind: engine.FaultSlow, Factor: 3})
	l.warm(second)
	l.warm(second)
	if n := l.ask(second, 20, slow); n > 4 {
		t.Errorf("%d of 20 requests still go to the slow server", n)
	}
	l.redis.Restart()
	eventually(t, "they share again", func() bool { l.ask(l.first, 1, slow); return second.metric("tandem_learned_records") == 1 })
}

// How long an agent's prompts are one gateway knows from what another one's answers have
// counted: its first request of that agent is predicted within 5 %, where a gateway that is alone
// is further off. A Redis that hangs takes nothing of it away, and costs no request anything.
func TestSharing_AnAgentsPromptLengthsAreShared(t *testing.T) {
	t.Parallel()
	start := func(role string) []*engine.Engine {
		return []*engine.Engine{startTestEngine(t, role, func(cfg *engine.Config) { publishing(cfg); cfg.TimeScale = computing })}
	}
	prefill, decode := start(engine.RolePrefill), start(engine.RoleDecode)
	redis := redisserver.Start(t)
	replica := func(name string) *cluster { // of no API but chat does prefill answer with token ids
		return newClusterOf(t, prefill, decode, "learned", func(cfg *config) { cfg.redis.addrs, cfg.redis.replica = []string{redis.Addr()}, name })
	}
	a, b, alone := replica("a"), replica("b"), newClusterOf(t, prefill, decode, "learned", nil)
	api := agentAPIs["messages"]
	off := func(c *cluster, conversation, turn int) float64 {
		t.Helper()
		got := c.post(api.path, api.body(conversation, turn))
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		prompt, _ := api.usage(got.body)
		predicted := gjson.Get(c.get("/debug/decisions/"+got.header.Get("X-Request-Id")).body, "attempts.0.prompt_tokens").Float()
		return math.Abs(predicted/float64(prompt) - 1)
	}
	eventually(t, "they share", func() bool { return a.metric("tandem_learned_records")+b.metric("tandem_learned_records") == 2 })
	for turn := range 3 {
		off(a, 0, turn)
	}
	seen := time.Now()
	learned := a.node.orchestrator.Binder.Prompts
	record := learned.Records(seen)[0]
	q := predict.Prompt{Model: record.Model, API: record.API, Context: record.Context, Rough: record.Points[0][0]}
	eventually(t, "b has read what a has counted", func() bool { return b.node.orchestrator.Binder.Prompts.Expect(q) == learned.Expect(q) })
	took := time.Since(seen)
	first, without := off(b, 1, 1), off(alone, 1, 1)
	t.Logf("%v later: a first request is off by %.1f %% with what the other has counted, by %.1f %% alone", took.Round(time.Millisecond), 100*first, 100*without)
	if first > 0.05 || without < 2*first {
		t.Errorf("a first request is off by %.1f %% with what the other has counted, by %.1f %% alone", 100*first, 100*without)
	}

	usual := time.Hour
	for turn := range 5 {
		began := time.Now()
		off(b, 2, turn)
		usual = min(usual, time.Since(began))
	}
	redis.Hang()
	defer redis.Continue()
	fastest := time.Hour // each that waited for Redis would do so for a fifth of a second at least
	for turn := range 5 {
		began := time.Now()
		if got := off(b, 3, turn); got > 0.05 {
			t.Errorf("while Redis hangs turn %d is off by %.1f %%", turn, 100*got)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 2*usual+150*time.Millisecond {
		t.Errorf("while Redis hangs a request takes %v, before %v", fastest, usual)
	}
}
