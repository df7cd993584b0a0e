package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/cmd/internal/porttls"
	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
	"github.com/tandem-gateway/tandem/pools/discovery"
)

func TestRedisConfig_MistakesAreNamed(t *testing.T) {
	for _, x := range []struct{ settings, want string }{
		{"redis: a", "host:port"},
		{"redis: http://a:1", "rediss://host:port"},
		{"redis: rediss://me:secret@a:1", "host and port only"},
		{"redis: redis://a:1/2", "host and port only"},
		{"redis: a:1\nredis-ca-file: ca.pem", "say redis-tls"},
		{"redis: rediss://a:1\nredis-cert-file: cert.pem", "belong together"},
		{"redis: [a:1, b:2]\nredis-database: 3", "database"},
		{"redis: a:1\nredis-prefix: ''", "redis-prefix"},
		{"redis-master: main", "of which there are none"},
		{"redis-cluster: true", "of which there are none"},
	} {
		_, err := configOf(t, "decode: http://x:1\n"+x.settings+"\n")
		if err == nil || !strings.Contains(err.Error(), x.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", x.settings, err)
		}
	}
}

// sharedFleet is a fleet whose replicas share all there is to share: a prefill server
// in connect mode, a decode server in bind mode, and prompts whose tokens are learned.
type sharedFleet struct {
	engines []*engine.Engine // prefill, decode
	dialsTo string
	redis   func(*RedisConfig)
}

func newSharedFleet(t *testing.T, redis func(*RedisConfig)) *sharedFleet {
	t.Helper()
	free, err := process.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	f := &sharedFleet{dialsTo: "tcp://" + free[0], redis: redis}
	f.engines = append(f.engines,
		startTestEngine(t, engine.RolePrefill, func(cfg *engine.Config) { cfg.EventsEndpoint = f.dialsTo }),
		startTestEngine(t, engine.RoleDecode, publishing))
	return f
}

// replica starts a gateway of the fleet. One that is deaf connects to no engine:
// what it knows it has from Redis.
func (f *sharedFleet) replica(t *testing.T, name string, deaf bool) *cluster {
	t.Helper()
	c := newCluster(t, shape{config: func(cfg *config) {
		f.redis(&cfg.redis)
		cfg.redis.replica, cfg.discovery.registry = name, true
		cfg.kv.modes, cfg.kv.snapshots = []string{"learned"}, 100*time.Millisecond
		cfg.pools.ProbeInterval = time.Minute // scraped load must not be what they know each other by
		for i, e := range f.engines {
			entry := serverEntry{URL: e.URL()}
			switch state := e.State(); {
			case i == 0:
				entry.Events, entry.EventBind = f.dialsTo, true
			case deaf:
				entry.Events = "tcp://127.0.0.1:1"
			default:
				entry.Events, entry.Replay = local(state.EventsEndpoints[0]), local(state.ReplayEndpoints[0])
			}
			cfg.servers[i].add(entry)
		}
	}})
	c.prefill, c.decode = f.engines[:1], f.engines[1:]
	eventually(t, name+" has its servers and Redis", func() bool {
		return c.metric("tandem_server_up") == 2 && c.metric("tandem_replicas_connected") == 1 && len(c.node.locality.Index.Sources()) == 2
	})
	return c
}

// sharesAll fails unless replicas tell each other through a Redis what they have in
// flight, what engines hold (snapshots, and deltas of one in connect mode) and what prompts'
// tokens are.
func sharesAll(t *testing.T, redis func(*RedisConfig)) {
	t.Helper()
	f := newSharedFleet(t, redis)
	a, b := f.replica(t, "a", false), f.replica(t, "b", false)
	eventually(t, "one of them receives from the engine in connect mode", func() bool {
		return a.metric("tandem_kv_receiving")+b.metric("tandem_kv_receiving") == 1
	})

	dials := strings.TrimPrefix(f.engines[0].URL(), "http://")
	n := 0
	ask := func(c *cluster) answer {
		n++
		got, _ := c.turn([]map[string]string{{"role": "system", "content": longPrompt}, {"role": "user", "content": fmt.Sprintf("Question %d?", n)}})
		return got
	}
	eventually(t, "both know what the engine in connect mode holds", func() bool {
		ask(a)
		return a.known(dials) > 0 && a.known(dials) == b.known(dials)
	})

	eventually(t, "both find the other's admin port", func() bool { return len(a.node.peers.Others()) == 1 && len(b.node.peers.Others()) == 1 })
	eventually(t, "both say which replica receives it, and where", func() bool {
		receiver := gjson.Get(a.get("/debug/servers").body, "0.kv.0.receiver").String()
		return (receiver == "a "+f.dialsTo || receiver == "b "+f.dialsTo) && receiver == gjson.Get(b.get("/debug/servers").body, "0.kv.0.receiver").String()
	})

	ask(a) // a second prompt with the same beginning proves its tokens
	eventually(t, "b finds a prefix whose tokens a learned", func() bool {
		return strings.Contains(b.get("/debug/decisions/"+ask(b).header.Get("X-Request-Id")).body, "prefill_cached")
	})

	f.engines[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders})
	conn := a.dialRequest(chatBody(""))
	eventually(t, "b sees a's work", func() bool { return b.metric("tandem_replicas_busy") == 1 })
	_ = conn.Close()
	f.engines[0].ClearFaults()
	eventually(t, "b sees that it ended", func() bool { return b.metric("tandem_replicas_busy") == 0 })

	drains := func(c *cluster) bool {
		return gjson.Get(c.get("/debug/servers").body, `#(id=="`+dials+`").draining`).Bool()
	}
	a.raw(http.MethodPost, a.admin+"/drain/"+dials)
	eventually(t, "b drains the server that an operator drains at a", func() bool { return drains(b) })
	b.raw(http.MethodDelete, b.admin+"/drain/"+dials)
	eventually(t, "neither does when that is taken back at b", func() bool { return !drains(a) && !drains(b) })

	eventually(t, "snapshots of all are kept", func() bool {
		for _, s := range a.node.locality.Index.Sources() {
			name, err := a.node.sharing.redis.Get(t.Context(), "tandem:kv:{"+s.Server+"#0}:snapshot").Result()
			if err != nil || !strings.HasPrefix(name, fmt.Sprintf("%d-%d-", s.Epoch, s.Seq)) {
				return false
			}
		}
		return true
	})
	late := f.replica(t, "late", true)
	eventually(t, "one that starts later knows all", func() bool {
		for _, s := range a.node.fleet.Servers() {
			if late.known(s.ID()) != a.known(s.ID()) {
				return false
			}
		}
		return late.metric("tandem_kv_snapshots_total", "restored") >= 2
	})
	eventually(t, "and what they learned", func() bool { return late.metric("tandem_learned_records") == 2 })
	f.registers(t, a, late)
}

// registers fails unless a server that registers itself is found by the replicas, and
// gone when it ends.
func (f *sharedFleet) registers(t *testing.T, replicas ...*cluster) {
	t.Helper()
	cfg := defaultConfig().redis
	f.redis(&cfg)
	client, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	more := startTestEngine(t, engine.RoleDecode, nil)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- discovery.Register(ctx, client, cfg.Prefix, discovery.Entry{URL: more.URL(), Role: "decode"}, 6*time.Second, slog.New(slog.DiscardHandler))
	}()
	all := func(n float64) func() bool {
		return func() bool {
			for _, c := range replicas {
				if c.metric("tandem_server_up") != n {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "a server that registers itself is found", all(3))
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	eventually(t, "it is gone", all(2))
}

func TestRedis_ReplicasShareAllThroughSentinels(t *testing.T) {
	t.Parallel()
	trio := redisserver.StartTrio(t)
	var sentinels []*redis.Client
	for _, addr := range trio.Addrs() {
		sentinel := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = sentinel.Close() }()
		if err := sentinel.Do(t.Context(), documentedUser(t, "watcher", "watching")...).Err(); err != nil {
			t.Fatal(err)
		}
		sentinels = append(sentinels, sentinel)
	}
	sharesAll(t, func(c *RedisConfig) {
		c.addrs, c.master = trio.Addrs(), redisserver.MasterName
		c.sentinelUser, c.sentinelPasswordFile = "watcher", passwordFile(t, "watching")
	})
	for _, sentinel := range sentinels {
		if refused, err := sentinel.ACLLog(t.Context(), 20).Result(); err != nil || len(refused) > 0 {
			t.Errorf("refused by a Sentinel: %+v, %v", refused, err)
		}
	}
}

// Sentinels that do not know the master, as with a name that is mistyped or where they lost their configuration, are a
// Redis that does not answer, and none without keys: that would be leases that nobody holds.
func TestRedis_SentinelsThatDoNotKnowTheMasterAreNoEmptyRedis(t *testing.T) {
	t.Parallel()
	trio := redisserver.StartTrio(t)
	cfg := RedisConfig{addrs: trio.Addrs(), master: "mistyped", Prefix: "tandem:"}
	err := askRedis(t.Context(), &cfg)
	if err == nil || errors.Is(err, redis.Nil) || !strings.Contains(err.Error(), `knows a master "mistyped"`) || strings.Contains(err.Error(), "docs/redis.md") {
		t.Errorf("check says %v", err)
	}
	client, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if err := client.Get(t.Context(), "tandem:lease").Err(); err == nil || errors.Is(err, redis.Nil) {
		t.Errorf("a key is read as if it were not there: %v", err)
	}
}

func TestRedis_ReplicasShareAllByTLSWithCertificates(t *testing.T) {
	t.Parallel()
	server, files := redisserver.StartTLS(t)
	sharesAll(t, func(c *RedisConfig) {
		c.addrs = []string{"rediss://" + server.Addr()}
		c.ca.File, c.certFile, c.keyFile = files.CA, files.Cert, files.Key
	})
}

func TestRedis_AServerOfAnUnknownAuthorityIsNotTrusted(t *testing.T) {
	server, files := redisserver.StartTLS(t)
	cfg := RedisConfig{addrs: []string{server.Addr()}, tls: true, certFile: files.Cert, keyFile: files.Key}
	client, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	eventually(t, "it is refused", func() bool { // a slow machine may run into the timeout first
		err := client.Ping(t.Context()).Err()
		if err == nil {
			t.Fatal("it is trusted")
		}
		return strings.Contains(err.Error(), "unknown authority")
	})
}

// A handshake may take longer than a command: a busy machine has to compute for it.
func TestRedis_ASlowHandshakeIsAwaited(t *testing.T) {
	t.Parallel()
	server, files := redisserver.StartTLS(t)
	slow, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := slow.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = client.Close() }()
				<-time.After(500 * time.Millisecond) // that the handshake takes longer
				redis, err := net.Dial("tcp", server.Addr())
				if err != nil {
					return
				}
				defer func() { _ = redis.Close() }()
				go func() { _, _ = io.Copy(redis, client); _ = redis.Close() }()
				_, _ = io.Copy(client, redis)
			})
		}
	})
	t.Cleanup(all.Wait)
	t.Cleanup(func() { _ = slow.Close() })
	cfg := RedisConfig{addrs: []string{slow.Addr().String()}, tls: true, ca: porttls.AuthorityFile{File: files.CA}, certFile: files.Cert, keyFile: files.Key}
	client, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	eventually(t, "it is connected", func() bool { return client.Ping(t.Context()).Err() == nil })
}

// Authorities that are replaced in their file, as when those of a cluster's certificates are, are those of the next
// connection. While the file is broken the old ones stay.
func TestRedis_AuthoritiesAreReadAgain(t *testing.T) {
	t.Parallel()
	server, files := redisserver.StartTLS(t)
	trusted, err := os.ReadFile(files.CA)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	write(t, ca, string(trusted))
	var log testlog.Buffer
	cfg := RedisConfig{addrs: []string{server.Addr()}, tls: true, ca: porttls.AuthorityFile{File: ca}, certFile: files.Cert, keyFile: files.Key, log: newTestLog(&log)}
	client, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ping := func() error { return client.Ping(t.Context()).Err() }
	eventually(t, "it is trusted", func() bool { return ping() == nil })
	server.Recertify()
	eventually(t, "another authority's certificate is refused", func() bool { err := ping(); return err != nil && strings.Contains(err.Error(), "unknown authority") })
	write(t, ca, "half")
	eventually(t, "a broken file is said", func() bool { _ = ping(); return strings.Contains(log.String(), "a file of authorities is broken") })
	if trusted, err = os.ReadFile(files.CA); err != nil {
		t.Fatal(err)
	}
	write(t, ca, string(trusted))
	eventually(t, "the new authority is trusted", func() bool { return ping() == nil })
}

// A password that is replaced in its file, as Kubernetes replaces a secret, is that of the next connection: to a server,
// to the nodes of a cluster, to Sentinels and to the master that they name.
func TestRedis_PasswordsAreReadForEachConnection(t *testing.T) {
	t.Parallel()
	for form, start := range map[string]func(*testing.T, *RedisConfig) (servers, sentinels []string){
		"a server": func(t *testing.T, c *RedisConfig) (servers, _ []string) {
			c.addrs = []string{redisserver.Start(t).Addr()}
			return c.addrs, nil
		},
		"a cluster": func(t *testing.T, c *RedisConfig) (servers, _ []string) {
			c.addrs = redisserver.StartCluster(t).Addrs()
			return c.addrs, nil
		},
		"Sentinels": func(t *testing.T, c *RedisConfig) (servers, sentinels []string) {
			trio := redisserver.StartTrio(t)
			c.addrs, c.master = trio.Addrs(), redisserver.MasterName
			for _, s := range trio.Servers {
				servers = append(servers, s.Addr())
			}
			return servers, c.addrs
		},
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			cfg := RedisConfig{Prefix: "tandem:", user: "tandem", passwordFile: passwordFile(t, "old")}
			servers, sentinels := start(t, &cfg)
			if sentinels != nil {
				cfg.sentinelUser, cfg.sentinelPasswordFile = "watcher", passwordFile(t, "old")
			}
			setPassword := func(password string) {
				for user, addrs := range map[string][]string{"tandem": servers, "watcher": sentinels} {
					for _, addr := range addrs {
						admin := redis.NewClient(&redis.Options{Addr: addr})
						for _, command := range [][]any{documentedUser(t, user, password), {"ACL", "SETUSER", user, "resetpass", ">" + password}, {"CLIENT", "KILL", "USER", user}} {
							if err := admin.Do(t.Context(), command...).Err(); err != nil {
								t.Fatal(err)
							}
						}
						_ = admin.Close()
					}
				}
			}
			setPassword("old")
			client, err := cfg.Client()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			get := func() error {
				err := client.Get(t.Context(), "tandem:key").Err()
				if errors.Is(err, redis.Nil) {
					return nil
				}
				return err
			}
			eventually(t, "the first passwords are taken", func() bool { return get() == nil })
			setPassword("new")
			eventually(t, "they are refused", func() bool { err := get(); return err != nil && strings.Contains(err.Error(), "WRONGPASS") })
			write(t, cfg.passwordFile, "new\n")
			if sentinels != nil {
				write(t, cfg.sentinelPasswordFile, "new\n")
			}
			eventually(t, "the new passwords are taken", func() bool { return get() == nil })
		})
	}
}

// documentedUser is an ACL user that docs/redis.md gives, with a password.
func documentedUser(t *testing.T, name, password string) []any {
	t.Helper()
	page, err := os.ReadFile("../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^user (` + name + ` on .*)$`).FindStringSubmatch(string(page))
	if line == nil {
		t.Fatalf("docs/redis.md gives no ACL user %s", name)
	}
	var rules []any
	for _, rule := range strings.Fields(strings.Replace(line[1], "PASSWORD", password, 1)) {
		rules = append(rules, rule)
	}
	return append([]any{"ACL", "SETUSER"}, rules...)
}

func passwordFile(t *testing.T, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The user of the documentation may do all that Tandem does and, by Redis' own log of
// refusals, is refused nothing; and all that Tandem keeps expires.
func TestRedis_ReplicasShareAllAsTheDocumentedUser(t *testing.T) {
	t.Parallel()
	server := redisserver.Start(t)
	server.Do(documentedUser(t, "tandem", "secret")...)
	server.Do("SET", "others", "1")
	sharesAll(t, func(c *RedisConfig) {
		c.addrs, c.user, c.passwordFile = []string{server.Addr()}, "tandem", passwordFile(t, "secret")
	})
	mayOnlyTandem(t, server.Client())

	keys, err := server.Client().Keys(t.Context(), "tandem:*").Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("%v, %v", keys, err)
	}
	for _, key := range keys {
		if ttl := server.Client().TTL(t.Context(), key).Val(); ttl == -1 { // -2: it is gone already
			t.Errorf("%s never expires", key)
		}
	}
}

func TestRedis_ReplicasShareAllThroughAClusterAsTheDocumentedUser(t *testing.T) {
	t.Parallel()
	cluster := redisserver.StartCluster(t)
	for _, s := range cluster.Servers {
		s.Do(documentedUser(t, "tandem", "secret")...)
	}
	sharesAll(t, func(c *RedisConfig) {
		c.addrs, c.user, c.passwordFile = cluster.Addrs(), "tandem", passwordFile(t, "secret")
	})
	for _, s := range cluster.Servers {
		mayOnlyTandem(t, s.Client())
	}
}

// While a slot moves to another master, what has moved already is asked of that one by ASKING: the documented user may.
func TestRedis_TheDocumentedUserFollowsASlotThatMoves(t *testing.T) {
	t.Parallel()
	cluster := redisserver.StartCluster(t)
	for _, s := range cluster.Servers {
		s.Do(documentedUser(t, "tandem", "secret")...)
	}
	cfg := RedisConfig{addrs: cluster.Addrs(), user: "tandem", passwordFile: passwordFile(t, "secret")}
	client, err := cfg.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	const key = "tandem:drains"
	from := cluster.Master(t, key)
	to := cluster.Servers[0]
	if to == from {
		to = cluster.Servers[1]
	}
	slot := from.Client().ClusterKeySlot(t.Context(), key).Val()
	to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.Ask("CLUSTER", "MYID"))
	from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.Ask("CLUSTER", "MYID"))
	eventually(t, "a key that is not there any more is written where it goes", func() bool { // a busy machine answers late
		if err = client.HSet(t.Context(), key, "a:1", "1 0").Err(); redis.HasErrorPrefix(err, "NOPERM") {
			t.Fatal(err)
		}
		return err == nil
	})
	for _, s := range cluster.Servers {
		mayOnlyTandem(t, s.Client())
	}
}

// mayOnlyTandem fails if anything was refused, and if more than what is Tandem's is
// allowed.
func mayOnlyTandem(t *testing.T, admin *redis.Client) {
	t.Helper()
	refused, err := admin.ACLLog(t.Context(), 20).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range refused {
		t.Errorf("refused: %s %s", entry.Reason, entry.Object)
	}
	// What the test has no way to bring about: a replica's demand grows too old.
	if err := admin.Do(t.Context(), "ACL", "DRYRUN", "tandem", "hdel", "tandem:{demand}", "x").Err(); err != nil {
		t.Error(err)
	}
	for _, command := range [][]string{{"get", "others"}, {"set", "others", "2"}, {"publish", "others", "x"}, {"keys", "*"}, {"flushall"}, {"config", "get", "*"}, {"eval", "return 1", "1", "others"}} {
		args := []any{"ACL", "DRYRUN", "tandem"}
		for _, word := range command {
			args = append(args, word)
		}
		if answer, err := admin.Do(context.WithoutCancel(t.Context()), args...).Text(); err != nil || answer == "OK" {
			t.Errorf("%v is allowed (%v)", command, err)
		}
	}
}

func TestReplicas_AClusterFailoverCostsNoRequest(t *testing.T) {
	t.Parallel()
	cluster := redisserver.StartCluster(t)
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 1, decode: 1, log: &log, config: func(cfg *config) { cfg.redis.addrs = cluster.Addrs() }})
	master := cluster.Master(t, "tandem:{work}")
	underFailure(t, c, &log, "failed over", master.Kill, func() {
		eventually(t, "another is the master", func() bool { now := cluster.Master(t, "tandem:{work}"); return now != nil && now != master })
	})
}

func TestRedisConfig_EnginesInConnectModeGetAnAddressTheyCanReach(t *testing.T) {
	c := RedisConfig{host: "10.0.0.5"}
	for bound, want := range map[string]string{
		"tcp://*:6001":          "tcp://10.0.0.5:6001",
		"tcp://0.0.0.0:6001":    "tcp://10.0.0.5:6001",
		"tcp://[::]:6001":       "tcp://10.0.0.5:6001",
		"tcp://10.9.9.9:6001":   "tcp://10.9.9.9:6001",
		"ipc:///run/events.ipc": "ipc:///run/events.ipc",
	} {
		if got := c.advertised(bound); got != want {
			t.Errorf("%s is told as %s, want %s", bound, got, want)
		}
	}
	if got := (&RedisConfig{}).advertised("tcp://*:6001"); strings.Contains(got, "*") {
		t.Errorf("without a host it is told as %s", got)
	}
}
