package serving

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	zmq "github.com/pebbe/zmq4"
	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools/discovery"
)

// changedWithin is how soon a changed fleet is used, ten times: a second is what is promised, and
// kept where the machine has nothing else to do.
const changedWithin = 10 * time.Second

// roll replaces all engines of a fleet under load, one after the other: no request
// fails, and each change is live within a second or so. set tells the source which engines
// there are now, prefill and decode.
func roll(t *testing.T, config func(*config), set func(prefill, decode []*engine.Engine)) {
	t.Helper()
	c := &cluster{t: t, client: newTestClient(t)}
	cfg := testConfig()
	cfg.pools.ProbeInterval = defaultConfig().pools.ProbeInterval
	config(&cfg)
	servers := map[string][]*engine.Engine{
		engine.RolePrefill: {startTestEngine(t, engine.RolePrefill, nil)},
		engine.RoleDecode:  {startTestEngine(t, engine.RoleDecode, nil)},
	}
	tell := func() { set(servers[engine.RolePrefill], servers[engine.RoleDecode]) }
	tell()
	c.run(cfg, nil)
	up := func() (up []string) {
		for _, s := range c.node.fleet.Servers() {
			if s.Health().Up {
				up = append(up, s.URL)
			}
		}
		return up
	}
	eventually(t, "the first servers are up", func() bool { return len(up()) == 2 })

	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.err != nil {
					t.Errorf("during a change: %d %s %v", got.status, got.body, got.err)
					return
				}
			}
		})
	}
	for _, role := range []string{engine.RolePrefill, engine.RoleDecode} {
		fresh := startTestEngine(t, role, nil)
		servers[role] = append(servers[role], fresh)
		tell()
		within(t, role+" server that came", func() bool { return slices.Contains(up(), fresh.URL()) })
		old := servers[role][0]
		servers[role] = servers[role][1:]
		tell()
		within(t, role+" server that went", func() bool { return !slices.Contains(up(), old.URL()) })
		eventually(t, "it runs dry", func() bool { return old.State().ServerLoad == 0 && old.State().HandoffsOpen == 0 })
		if err := old.Close(); err != nil {
			t.Error(err)
		}
	}
	stop()
	clients.Wait()
}

// within waits for a change to be live and says how long it took.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	eventually(t, what, holds)
	took := time.Since(began)
	t.Logf("%s: live after %v", what, took.Round(time.Millisecond))
	if took > changedWithin {
		t.Errorf("%s: live after %v, want %v at most", what, took, changedWithin)
	}
}

func TestDiscovery_ServersAreFoundByDNS(t *testing.T) {
	zone := newZone(t)
	roll(t, func(cfg *config) {
		cfg.discovery.dns.Server = zone.addr
		cfg.servers[0].add(serverEntry{URL: "srv+http://_http._tcp.prefill.test"})
		cfg.servers[1].add(serverEntry{URL: "srv+http://_http._tcp.decode.test"})
	}, func(prefill, decode []*engine.Engine) {
		zone.set("_http._tcp.prefill.test.", prefill)
		zone.set("_http._tcp.decode.test.", decode)
	})
}

func TestDiscovery_ServersRegisterThemselves(t *testing.T) {
	t.Parallel()
	redis := redisserver.Start(t)
	var registering sync.WaitGroup
	leaves := make(map[string]func()) // by URL, of those that are registered
	register := func(role string, e *engine.Engine) {
		ctx, leave := context.WithCancel(context.WithoutCancel(t.Context()))
		leaves[e.URL()] = leave
		client := redis.Client()
		registering.Go(func() {
			entry := discovery.Entry{URL: e.URL(), Role: role}
			if err := discovery.Register(ctx, client, "tandem:", entry, time.Minute, slog.New(slog.DiscardHandler)); err != nil {
				t.Error(err)
			}
		})
	}
	roll(t, func(cfg *config) {
		cfg.redis.addrs, cfg.discovery.registry = []string{redis.Addr()}, true
	}, func(prefill, decode []*engine.Engine) {
		there := make(map[string]bool)
		for role, engines := range map[string][]*engine.Engine{"prefill": prefill, "decode": decode} {
			for _, e := range engines {
				there[e.URL()] = true
				if leaves[e.URL()] == nil {
					register(role, e)
				}
			}
		}
		for url, leave := range leaves {
			if !there[url] {
				leave()
			}
		}
	})
	for _, leave := range leaves {
		leave()
	}
	registering.Wait()
}

// Engines with the P2pNcclConnector say over ZMQ that they are there, and where their KV
// is: nothing of them is configured.
func TestDiscovery_EnginesAnnounceThemselves(t *testing.T) {
	c := &cluster{t: t, client: newTestClient(t)}
	cfg := testConfig()
	cfg.discovery.nccl = "tcp://127.0.0.1:*"
	c.run(cfg, nil)
	address := c.node.discovery.announcements.Address()
	nccl := func(cfg *engine.Config) { cfg.Connector = engine.ConnectorP2PNCCL }
	prefill, decode := startTestEngine(t, engine.RolePrefill, nccl), startTestEngine(t, engine.RoleDecode, nccl)
	announce(t, address, prefill)
	announce(t, address, decode)
	within(t, "the first two", func() bool { return c.metric("tandem_server_up") == 2 })
	want := reference(t, "/v1/chat/completions", chatBody("")).text()
	ask := func() (by string) {
		t.Helper()
		got := c.post("/v1/chat/completions", chatBody(""))
		if got.status != 200 || got.text() != want || got.header.Get("X-Tandem-Prefill") != prefill.URL()[len("http://"):] {
			t.Errorf("%d by %v: %.200s", got.status, got.header, got.body)
		}
		return got.header.Get("X-Tandem-Decode")
	}
	ask()
	fresh := startTestEngine(t, engine.RoleDecode, nccl)
	announce(t, address, fresh)
	within(t, "one that came", func() bool { return c.metric("tandem_server_up") == 3 })
	_ = decode.Close() // without a word
	for range 4 {
		if by := ask(); by != fresh.URL()[len("http://"):] {
			t.Errorf("decoded by %s", by)
		}
	}
	if s := fresh.State(); s.Recomputed != 0 || s.DecodesDone != 4 {
		t.Errorf("%d decodes, %d prompts computed again", s.DecodesDone, s.Recomputed)
	}
}

// announce sends what such an engine does when it starts (vllm p2p_nccl_engine.py, ping).
func announce(t *testing.T, to string, e *engine.Engine) {
	t.Helper()
	s := e.State()
	kind := "P"
	if s.Role == engine.RoleDecode {
		kind = "D"
	}
	message := msgp.AppendMapHeader(nil, 3)
	for _, text := range []string{"type", kind, "http_address", s.URL[len("http://"):], "zmq_address", s.KVAddress} {
		message = msgp.AppendString(message, text)
	}
	dealer, err := zmq.NewSocket(zmq.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dealer.Close() })
	if err := dealer.Connect(to); err != nil {
		t.Fatal(err)
	}
	if _, err := dealer.SendBytes(message, 0); err != nil {
		t.Fatal(err)
	}
}

// zone is a DNS server whose SRV records are engines.
type zone struct {
	addr string

	mu      sync.Mutex
	records map[string][]string // zone-file lines by name
}

func newZone(t *testing.T) *zone {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z := &zone{addr: conn.LocalAddr().String(), records: make(map[string][]string)}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(z.answer)}
	served := make(chan error, 1)
	go func() { served <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return z
}

func (z *zone) answer(w dns.ResponseWriter, question *dns.Msg) {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg).SetReply(question)
	q := question.Question[0]
	for _, line := range z.records[q.Name] {
		if rr, err := dns.NewRR(line); err == nil && rr.Header().Rrtype == q.Qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	_ = w.WriteMsg(m) // the client asks again
}

func (z *zone) set(name string, engines []*engine.Engine) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records["host.test."] = []string{"host.test. 0 IN A 127.0.0.1"}
	z.records[name] = nil
	for _, e := range engines {
		u, err := url.Parse(e.URL())
		if err != nil {
			panic(err) // the engine's own
		}
		z.records[name] = append(z.records[name], fmt.Sprintf("%s 0 IN SRV 0 0 %s host.test.", name, u.Port()))
	}
}
