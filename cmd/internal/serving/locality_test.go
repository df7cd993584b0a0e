package serving

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools"
)

// publishing makes engines publish their KV events on free ports.
func publishing(cfg *engine.Config) {
	cfg.EventsEndpoint, cfg.ReplayEndpoint = "tcp://*:*", "tcp://*:*"
}

// local is an address that can be connected to.
func local(endpoint string) string {
	return strings.NewReplacer("*", "127.0.0.1", "0.0.0.0", "127.0.0.1").Replace(endpoint)
}

// listening adds the engines' event addresses to the configuration of servers.
func listening(engines func() []*engine.Engine) func(*config) {
	return func(cfg *config) {
		for _, e := range engines() {
			state := e.State()
			for i := range cfg.servers {
				for k := range cfg.servers[i].specs {
					if s := &cfg.servers[i].specs[k]; s.URL == e.URL() {
						s.Events, s.Replay = local(state.EventsEndpoints[0]), local(state.ReplayEndpoints[0])
					}
				}
			}
		}
	}
}

// computing is how long computing takes there, of what engines take: with nothing a prefix
// that is held would be worth nothing. The gateway knows of it, as after a calibration.
const computing = 0.1

// believe tells a gateway that engines take so many times as long as it would assume.
func believe(cfg *config, times float64) {
	cfg.pools.Measured = true
	for i := range cfg.pools.Prefill {
		cfg.pools.Prefill[i] *= times
		cfg.pools.Step[i] *= times
	}
}

// newPublishingCluster has engines whose KV events the gateway hears.
func newPublishingCluster(t *testing.T, prefill, decode int, tokens string, change func(*config)) *cluster {
	t.Helper()
	return newClusterComputing(t, computing, prefill, decode, tokens, change)
}

// newClusterComputing has engines whose computing takes so many times as long as it does in life:
// 1 where a choice compares times of which a busy machine's delays must stay a small part.
func newClusterComputing(t *testing.T, times float64, prefill, decode int, tokens string, change func(*config)) *cluster {
	t.Helper()
	start := func(role string, n int) (engines []*engine.Engine) {
		for range n {
			engines = append(engines, startTestEngine(t, role, func(cfg *engine.Config) {
				publishing(cfg)
				cfg.TimeScale = times
			}))
		}
		return engines
	}
	return newClusterOf(t, start(engine.RolePrefill, prefill), start(engine.RoleDecode, decode), tokens, func(cfg *config) {
		believe(cfg, times/computing)
		if change != nil {
			change(cfg)
		}
	})
}

// newClusterOf has engines that publish their KV events.
func newClusterOf(t *testing.T, prefill, decode []*engine.Engine, tokens string, change func(*config)) *cluster {
	t.Helper()
	return newLoggedClusterOf(t, nil, prefill, decode, tokens, change)
}

func newLoggedClusterOf(t *testing.T, log io.Writer, prefill, decode []*engine.Engine, tokens string, change func(*config)) *cluster {
	t.Helper()
	engines := slices.Concat(prefill, decode)
	var cfg config
	c := newCluster(t, shape{log: log, config: func(given *config) {
		for i, of := range [][]*engine.Engine{prefill, decode} {
			for _, e := range of {
				given.servers[i].add(serverEntry{URL: e.URL()})
			}
		}
		if tokens != "approximate" {
			listening(func() []*engine.Engine { return engines })(given)
		}
		given.kv.modes = []string{tokens}
		believe(given, computing)
		if change != nil {
			change(given)
		}
		cfg = *given
	}})
	c.prefill, c.decode = prefill, decode
	c.cfg = cfg
	eventually(t, "all servers are up", func() bool { return c.metric("tandem_server_up") == float64(len(engines)) })
	return c
}

// turn is one request of a conversation.
func (c *cluster) turn(history []map[string]string) (answer, []map[string]string) {
	c.t.Helper()
	messages, _ := json.Marshal(history)
	got := c.post("/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":30,"ignore_eos":true,"messages":%s}`, testModel, messages))
	if got.status != 200 {
		c.t.Fatalf("%d %s", got.status, got.body)
	}
	return got, append(history, map[string]string{"role": "assistant", "content": got.text()})
}

// converse runs several conversations that take turns, and returns how many turns went
// elsewhere than the one before and which share of prompt tokens was cached, both from
// the second turn on.
func (c *cluster) converse(conversations, turns int) (strayed int, cached float64) {
	histories := make([][]map[string]string, conversations)
	homes := make([]string, conversations)
	prompt := 0.0
	for turn := range turns {
		for i := range conversations {
			// No two messages of one begin alike: what is learned of tokens allows for
			// templates that change their order.
			text := fmt.Sprintf("%d%d is turn %d of conversation %d. %s", turn, i, turn, i, strings.Repeat(fmt.Sprintf("word%d ", i), 320))
			var got answer
			got, histories[i] = c.turn(append(histories[i], map[string]string{"role": "user", "content": text}))
			home := got.header.Get("X-Tandem-Prefill")
			if turn > 0 {
				if home != homes[i] {
					strayed++
				}
				prompt += gjson.Get(got.body, "usage.prompt_tokens").Float()
				cached += gjson.Get(got.body, "usage.prompt_tokens_details.cached_tokens").Float()
			}
			homes[i] = home
			if len(c.node.locality.Index.Sources()) > 0 {
				c.settle(home)
			}
		}
	}
	return strayed, cached / prompt
}

// Each next turn must find the server that holds what came before, and be told the
// truth of what was cached: within two points of a cluster with one server of each
// role, which cannot choose wrongly.
func TestLocality_ConversationsFindTheirPrefix(t *testing.T) {
	const conversations, turns = 6, 4
	_, perfect := newPublishingCluster(t, 1, 1, "engine", nil).converse(conversations, turns)
	for _, mode := range []string{"engine", "learned", "approximate"} {
		t.Run(mode, func(t *testing.T) {
			for try := 1; ; try++ {
				strayed, cached := newPublishingCluster(t, 3, 1, mode, nil).converse(conversations, turns)
				t.Logf("%d of %d turns strayed, %.1f %% of prompt tokens were cached, %.1f %% could be", strayed, conversations*(turns-1), 100*cached, 100*perfect)
				found := cached >= perfect-0.02
				if mode == "learned" { // a second turn may come before its boundary is proven
					found = strayed <= conversations/2
				}
				if found {
					return
				}
				if try == 5 { // on a busy machine a server may look slow, and another be the right choice
					t.Fatal("not within two points of what could be, five times")
				}
			}
		})
	}
}

// settle waits until the gateway knows all that a server holds.
func (c *cluster) settle(server string) {
	c.t.Helper()
	for _, e := range append(c.prefill, c.decode...) {
		if "http://"+e.URL()[len("http://"):] != "http://"+server {
			continue
		}
		eventually(c.t, "the index equals what the engine holds", func() bool { return c.known(server) == len(e.Blocks()) })
	}
}

// known is how many blocks the gateway believes a server to hold.
func (c *cluster) known(server string) (n int) {
	for _, s := range c.node.locality.Index.Sources() {
		if s.Server == server {
			for _, h := range s.Holders {
				n += h.GPU + h.Unreachable
			}
		}
	}
	return n
}

func TestLocality_WhatIsGoneIsNotClaimed(t *testing.T) {
	t.Parallel()
	c := newPublishingCluster(t, 1, 1, "engine", nil)
	_, history := c.turn([]map[string]string{{"role": "user", "content": longPrompt}})
	server := c.node.fleet.Servers()[0]
	c.settle(server.ID())
	if c.known(server.ID()) == 0 {
		t.Fatal("nothing is known")
	}
	for _, e := range append(c.prefill, c.decode...) {
		if got := c.raw("POST", e.URL()+"/reset_prefix_cache"); got.status != 200 {
			t.Fatalf("reset_prefix_cache: %d", got.status)
		}
	}
	for _, s := range c.node.fleet.Servers() {
		eventually(t, "all is forgotten", func() bool { return c.known(s.ID()) == 0 })
	}
	if got, _ := c.turn(history); gjson.Get(got.body, "usage.prompt_tokens_details.cached_tokens").Int() != 0 {
		t.Errorf("%s", got.body)
	}
}

// Of most prompts only the beginning is known when they are bound: the earlier turns, which
// caches hold. The share that is counted as held is that of the whole prompts all the same.
func TestLocality_TheHitRateIsThatOfTheEngines(t *testing.T) {
	c := newPublishingCluster(t, 1, 1, "engine", nil)
	c.converse(2, 4)
	looked, held := c.metric("tandem_kv_prompt_tokens_total"), c.metric("tandem_kv_hit_tokens_total", `tier="gpu"`)
	prompts, cached := c.metric("tandem_prompt_tokens_total"), c.metric("tandem_cached_prompt_tokens_total")
	if looked != prompts {
		t.Errorf("%v tokens of prompts were looked up, engines computed or had %v", looked, prompts)
	}
	if held == 0 || held > prompts || held/looked < cached/prompts-0.15 || held/looked > cached/prompts+0.15 {
		t.Errorf("the gateway counted %v of %v as held, engines %v of %v", held, looked, cached, prompts)
	}
}

func TestLocality_ExplainShowsTheHits(t *testing.T) {
	c := newPublishingCluster(t, 2, 1, "engine", nil)
	got, history := c.turn([]map[string]string{{"role": "user", "content": longPrompt}})
	home := got.header.Get("X-Tandem-Prefill")
	c.settle(home)
	again, _ := c.turn(append(history, map[string]string{"role": "user", "content": "And then?"}))
	d := c.get("/debug/decisions/" + again.header.Get("X-Request-Id")).body
	for _, a := range gjson.Get(d, "attempts.0.alternatives").Array() {
		if cached := a.Get("prefill_cached").Int(); (a.Get("prefill").String() == home) != (cached > 400) {
			t.Errorf("%s", a.Raw)
		}
	}
	if exact := gjson.Get(d, "attempts.0.prompt_tokens").Int(); exact != gjson.Get(again.body, "usage.prompt_tokens").Int() {
		t.Errorf("the choice assumed %d tokens", exact)
	}
}

// vLLM 0.32 answers 403 where the render paths are switched off: they are left alone then,
// as where there are none, and each prompt asks /tokenize only.
func TestLocality_RenderPathsThatAreSwitchedOffAreLeftAlone(t *testing.T) {
	const render = "/v1/chat/completions/render"
	c := newPublishingCluster(t, 1, 1, "engine", nil)
	asked := func(path string) (n int) {
		for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
			n += e.State().RequestsByPath[path]
		}
		return n
	}
	for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 403, Path: render})
	}
	for i := range 5 {
		c.turn([]map[string]string{{"role": "user", "content": fmt.Sprintf("%d: %s", i, longPrompt)}})
		eventually(t, "tokens are asked for", func() bool { return asked("/tokenize") > i })
	}
	if n := asked(render); n != 1 {
		t.Errorf("a path that is switched off was asked %d times", n)
	}
}

// An engine that chooses among its ranks by itself: each publishes on ports of its own,
// and together they are what the server holds.
func TestLocality_RanksBehindOneAddress(t *testing.T) {
	t.Parallel()
	ports := portsInARow(t, 4)
	events, replay := fmt.Sprintf("tcp://*:%d", ports), fmt.Sprintf("tcp://*:%d", ports+2)
	prefill := startTestEngine(t, engine.RolePrefill, func(cfg *engine.Config) {
		cfg.DataParallel, cfg.EventsEndpoint, cfg.ReplayEndpoint = 2, events, replay
	})
	decode := startTestEngine(t, engine.RoleDecode, nil)
	c := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[0].add(serverEntry{URL: prefill.URL(), Events: local(events), Replay: local(replay), EventRanks: 2})
		cfg.servers[1].add(serverEntry{URL: decode.URL()})
	}})
	eventually(t, "both ranks are listened to", func() bool { return c.metric("tandem_kv_connected") == 2 && c.metric("tandem_server_up") == 2 })
	held := func(rank int) (n int64) {
		path := fmt.Sprintf("0.kv.#(rank==%d).gpu_blocks", rank)
		if rank == 0 { // left out where it is 0
			path = "0.kv.0.gpu_blocks"
		}
		return gjson.Get(c.get("/debug/servers").body, path).Int()
	}
	n := 0
	eventually(t, "both ranks hold something", func() bool {
		n++
		c.turn([]map[string]string{{"role": "user", "content": strings.Repeat(fmt.Sprintf("Riders %d. ", n), 50)}})
		return held(0) > 0 && held(1) > 0
	})
	eventually(t, "all is known", func() bool { return held(0)+held(1) == int64(len(prefill.Blocks())) })
}

// portsInARow returns the first of n ports on which nothing listens. They are below those that
// the system gives to outgoing connections: one of other tests could take them meanwhile.
func portsInARow(t *testing.T, n int) int {
	t.Helper()
	for range 100 {
		var held []net.Listener
		first := 10000 + rand.IntN(22000)
		for i := range n {
			ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
			if err != nil {
				break
			}
			held = append(held, ln)
		}
		for _, ln := range held {
			_ = ln.Close()
		}
		if len(held) == n {
			return first
		}
	}
	t.Fatal("no ports in a row")
	return 0
}

func TestLocality_AReplicaThatStartsIsWarm(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	shared := func(cfg *config) { cfg.redis.addrs, cfg.kv.snapshots = []string{r.Addr()}, 100*time.Millisecond }
	a := newPublishingCluster(t, 2, 1, "engine", shared)
	_, _ = a.turn([]map[string]string{{"role": "user", "content": longPrompt}})
	holder := ""
	eventually(t, "the prefill's blocks are known", func() bool {
		for _, s := range a.node.fleet.Servers() {
			if s.Role == pools.Prefill && a.known(s.ID()) > 20 {
				holder = s.ID()
			}
		}
		return holder != ""
	})
	eventually(t, "a snapshot is kept", func() bool {
		n, err := r.Client().Exists(t.Context(), "tandem:kv:{"+holder+"#0}:snapshot").Result()
		return err == nil && n == 1
	})
	// The second replica hears nothing of what was: only Redis can tell it.
	b := newCluster(t, shape{config: func(cfg *config) {
		*cfg = a.cfg
		for i := range cfg.servers {
			cfg.servers[i].specs = append([]pools.Spec(nil), cfg.servers[i].specs...)
			for k := range cfg.servers[i].specs {
				cfg.servers[i].specs[k].Replay = ""
				cfg.servers[i].specs[k].Events = "tcp://127.0.0.1:1"
			}
		}
	}})
	eventually(t, "the second replica knows", func() bool { return b.known(holder) == a.known(holder) })
}

func TestLocality_WhatOneReplicaLearnsTheOtherKnows(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	a := newPublishingCluster(t, 2, 1, "learned", func(cfg *config) { cfg.redis.addrs = []string{r.Addr()} })
	b := newCluster(t, shape{config: func(cfg *config) { *cfg = a.cfg }})
	b.prefill, b.decode = a.prefill, a.decode
	eventually(t, "the second replica has its servers", func() bool { return b.metric("tandem_server_up") == 3 })
	teach := func(c *cluster, question string) answer {
		got, _ := c.turn([]map[string]string{{"role": "system", "content": longPrompt}, {"role": "user", "content": question}})
		return got
	}
	// Two prompts with the same beginning prove its tokens; both go to the first replica.
	teach(a, "What is it about?")
	teach(a, "Who rides it?")
	eventually(t, "the lessons are kept", func() bool { n, _ := r.Client().LLen(t.Context(), "tandem:{lessons}:kept").Result(); return n >= 2 })
	eventually(t, "the second replica finds the prefix", func() bool {
		got := teach(b, fmt.Sprintf("Question %d?", time.Now().UnixNano()))
		d := b.get("/debug/decisions/" + got.header.Get("X-Request-Id")).body
		return strings.Contains(d, "prefill_cached")
	})
}

// A secret of block hashes that is replaced in its file, as Kubernetes replaces a secret, keys them from then on: what
// engines hold is learned anew from their events, and found. A file that is empty changes nothing.
func TestKVSecret_ThatIsReplacedKeysTheHashes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	write(t, file, "canary-old\n")
	var log testlog.Buffer
	engines := func(role string) []*engine.Engine { return []*engine.Engine{startTestEngine(t, role, publishing)} }
	c := newLoggedClusterOf(t, &log, engines(engine.RolePrefill), engines(engine.RoleDecode), "engine", func(cfg *config) { cfg.kv.secretFile = file })
	home := strings.TrimPrefix(c.prefill[0].URL(), "http://")
	_, history := c.turn([]map[string]string{{"role": "user", "content": longPrompt}})
	c.settle(home)
	held, mark := c.known(home), c.node.locality.Index.SecretMark()
	write(t, file, "\n")
	eventually(t, "an empty file is broken", func() bool { return c.metric("tandem_file_reload_successful", `file="kv-secret-file"`) == 0 })
	if c.node.locality.Index.SecretMark() != mark {
		t.Error("it is in use")
	}
	write(t, file, "canary-new\n")
	eventually(t, "the new one is in use", func() bool { return c.node.locality.Index.SecretMark() != mark })
	eventually(t, "what is held is known again", func() bool { return held > 0 && c.known(home) == held })
	eventually(t, "and is found", func() bool {
		got, _ := c.turn(append(history, map[string]string{"role": "user", "content": fmt.Sprintf("Go on, %d", time.Now().UnixNano())}))
		d := c.get("/debug/decisions/" + got.header.Get("X-Request-Id")).body
		return strings.Contains(d, "prefill_cached")
	})
	if got := c.metric("tandem_file_reload_successful", `file="kv-secret-file"`); got != 1 || !strings.Contains(log.String(), "secret reloaded") || strings.Contains(log.String(), "canary") {
		t.Errorf("metrics say %v of the new secret, want 1; the log says that it is reloaded, and not what it is:\n%s", got, log.String())
	}
}
