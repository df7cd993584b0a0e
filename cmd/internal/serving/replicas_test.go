package serving

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pd"
)

// twoReplicas are two gateways in front of the same engines, on one Redis.
func twoReplicas(t *testing.T, r *redisserver.Server, log io.Writer) (a, b *cluster) {
	t.Helper()
	shared := func(cfg *config) {
		cfg.redis.addrs = []string{r.Addr()}
		cfg.pools.ProbeInterval = time.Minute // scraped load must not be what they know each other by
	}
	a = newCluster(t, shape{prefill: 2, decode: 1, config: shared, log: log})
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
	t.Parallel()
	a, b := twoReplicas(t, redisserver.Start(t), nil)
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

// A burst of requests with one prefix that no server holds yet, half of them at each of two
// gateways: each counts what it has sent before it is there, and hears of the other's, so
// that no server gets them all. Blocks that are only being computed draw no request.
func TestReplicas_ABurstOfSiblingsIsSpread(t *testing.T) {
	const siblings, servers = 64, 4
	for _, binding := range []pd.BindMode{pd.OnArrival, pd.Late} {
		t.Run(string(binding), func(t *testing.T) {
			r := redisserver.Start(t)
			change := func(cfg *config) {
				cfg.redis.addrs = []string{r.Addr()}
				cfg.pd.binding, cfg.cost.PairsFirst = binding, true
			}
			a := newCluster(t, shape{prefill: servers, decode: 2, config: change, engine: func(cfg *engine.Config) { cfg.TimeScale = 0.3 }})
			b := newCluster(t, shape{config: func(cfg *config) {
				change(cfg)
				for i, e := range append(a.prefill, a.decode...) {
					cfg.servers[i/servers].add(serverEntry{URL: e.URL()})
				}
			}})
			eventually(t, "both share and have their servers", func() bool {
				return a.metric("tandem_replicas_connected") == 1 && b.metric("tandem_replicas_connected") == 1 && b.metric("tandem_server_up") == servers+2
			})
			var asked sync.WaitGroup
			for i := range siblings {
				asked.Go(func() {
					body := strings.Replace(promptOf(4, ""), `"}]`, fmt.Sprintf(` Question %d?"}]`, i), 1)
					if got := []*cluster{a, b}[i%2].post("/v1/chat/completions", body); got.status != 200 {
						t.Errorf("status %d: %s", got.status, got.body)
					}
				})
			}
			asked.Wait()
			var got [servers]int
			for i := range got {
				got[i] = len(requests(a.prefill[i:i+1], "/v1/chat/completions"))
			}
			t.Logf("the servers got %v", got)
			if most := slices.Max(got[:]); most > 2*siblings/servers {
				t.Errorf("of %d requests one of %d servers got %d: %v", siblings, servers, most, got)
			}
		})
	}
}

// underFailure sends requests while Redis fails: none may fail or take long, the
// failure must be visible, and all must be well again soon after it ended. The log is the
// gateway's.
func underFailure(t *testing.T, c *cluster, log *testlog.Buffer, name string, fail, heal func()) {
	t.Helper()
	twenty := func() (fastest, slowest time.Duration) {
		fastest = time.Hour
		for range 20 {
			start := time.Now()
			if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
			took := time.Since(start)
			fastest, slowest = min(fastest, took), max(slowest, took)
		}
		return fastest, slowest
	}
	// What heals by itself is seen in the log whenever that is looked at.
	losses := func() int { return strings.Count(log.String(), "cannot share work with other replicas") }
	before := losses()
	sharing := func() bool { return c.metric("tandem_replicas_connected") == 1 }
	eventually(t, name+": sharing", sharing)
	usual, longest := twenty()
	fail()
	// Each that waited for Redis would do so for a fifth of a second at least; a busy machine
	// is slow for some.
	fastest, slowest := twenty()
	t.Logf("%s: requests took %v to %v, before %v to %v", name, fastest, slowest, usual, longest)
	if fastest > 2*usual+150*time.Millisecond || slowest > 2*longest+10*time.Second {
		t.Errorf("they waited for Redis:\n%s", log.String())
	}
	eventually(t, name+" is seen", func() bool { return losses() > before })
	heal()
	eventuallyIn(t, 15*time.Second, name+": sharing again", sharing)
}

func TestReplicas_ARedisThatFailsCostsNoRequest(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	var log testlog.Buffer
	a, _ := twoReplicas(t, r, &log)
	underFailure(t, a, &log, "hanging", r.Hang, r.Continue)
	underFailure(t, a, &log, "killed", r.Kill, r.Restart)
	underFailure(t, a, &log, "read-only", func() { r.Do("REPLICAOF", "127.0.0.1", "1") }, func() { r.Do("REPLICAOF", "NO", "ONE") })
	underFailure(t, a, &log, "full", func() { r.Do("CONFIG", "SET", "maxmemory", "1") }, func() { r.Do("CONFIG", "SET", "maxmemory", "0") })
	underFailure(t, a, &log, "refused", func() { r.Do("ACL", "SETUSER", "default", "-@write", "-publish") }, func() { r.Do("ACL", "SETUSER", "default", "+@all") })

	r.Do("FLUSHALL") // emptied: nothing to notice, nothing may fail
	if got := a.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("emptied: %d %s", got.status, got.body)
	}
}

func TestReplicas_ASlowRedisCostsNoTime(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	proxy := toxiproxy.NewProxy(toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop()), "redis", "127.0.0.1:0", r.Addr())
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	defer proxy.Stop()
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 1, decode: 1, log: &log, config: func(cfg *config) { cfg.redis.addrs = []string{proxy.Listen} }})
	underFailure(t, c, &log, "slow", func() {
		if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(`{"type":"latency","attributes":{"latency":1000}}`)); err != nil {
			t.Fatal(err)
		}
	}, func() { proxy.Toxics.ResetToxics(t.Context()) })
}

func TestReplicas_ASentinelFailoverCostsNoRequest(t *testing.T) {
	t.Parallel()
	trio := redisserver.StartTrio(t)
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 1, decode: 1, log: &log, config: func(cfg *config) {
		cfg.redis.addrs, cfg.redis.master = trio.Addrs(), redisserver.MasterName
	}})
	master := trio.Master(t)
	underFailure(t, c, &log, "failed over", master.Kill, func() {
		eventually(t, "another is the master", func() bool { now := trio.Master(t); return now != nil && now != master })
	})
}

func TestReplicas_ARedisThatIsAwayAtStartIsNoError(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.redis.addrs = []string{"127.0.0.1:1"} }})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// The names of Redis are not found while its pods or containers do not run: a gateway that starts then serves, and
// where one of several is found it can be followed at the address that Redis is reached from.
func TestReplicas_ARedisWhoseNameIsNotFoundAtStartIsNoError(t *testing.T) {
	t.Parallel()
	const unknown = "redis..invalid:6379" // no name at all, so that no DNS server is asked
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.redis.addrs, cfg.pd.binding = []string{unknown}, pd.Late }})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	if own, towardsRedis, err := (&RedisConfig{addrs: []string{unknown, "127.0.0.1:6379"}}).ownAddress(); own != "127.0.0.1" || !towardsRedis || err != nil {
		t.Errorf("the second address is reached from %q, %v", own, err)
	}
	if _, towardsRedis, err := (&RedisConfig{addrs: []string{unknown}}).ownAddress(); towardsRedis || err != nil {
		t.Errorf("no address is known, and one is taken for that which Redis is reached from, %v", err)
	}
}

// What one replica sent to a server the other knows that it holds, where prompts are known by their text
// alone: the second turns of conversations, which come to the other replica, find the first.
func TestReplicas_PromptsKnownByTextGoWhereTheOtherSentThem(t *testing.T) {
	const conversations = 8
	r := redisserver.Start(t)
	change := func(cfg *config) { cfg.redis.addrs = []string{r.Addr()} }
	a := newPublishingCluster(t, 4, 1, "approximate", change)
	b := newClusterOf(t, a.prefill, a.decode, "approximate", change)
	eventually(t, "both listen", func() bool {
		for _, n := range r.Client().PubSubNumSub(t.Context(), a.cfg.redis.Prefix+"{texts}").Val() {
			return n == 2
		}
		return false
	})
	var homes [conversations]string
	for i := range conversations {
		got := a.post("/v1/chat/completions", promptOf(1+i, ""))
		if homes[i] = got.header.Get("X-Tandem-Prefill"); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	told := func(c *cluster, event string) float64 {
		return c.metric("tandem_sent_text_records_total", fmt.Sprintf("event=%q", event))
	}
	eventually(t, "b has received what a told", func() bool {
		return told(a, "told") >= 2*conversations && told(b, "received") == told(a, "told")
	})
	strayed := 0
	for i, home := range homes {
		if got := b.post("/v1/chat/completions", promptOf(1+i, "")); got.header.Get("X-Tandem-Prefill") != home {
			strayed++
		}
	}
	if strayed > 1 { // one server of a busy machine may look slow; by chance 6 stray
		t.Errorf("%d of %d second turns went elsewhere than the first", strayed, conversations)
	}
}
