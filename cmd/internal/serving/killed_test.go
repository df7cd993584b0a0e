package serving

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pools"
)

// One of three replicas behind a plain proxy is killed when a prefill has ended and decode
// has not been asked. Its client's connection breaks, and what it sends next is served; the
// other replicas forget what the dead one had on the servers, and the hand-off that no server
// will fetch is freed by the engine's own lease.
func TestReplicas_OneKilledBetweenTheLegsIsForgotten(t *testing.T) {
	t.Parallel()
	redis := redisserver.Start(t)
	prefill := startTestEngine(t, engine.RolePrefill, func(cfg *engine.Config) { cfg.Lease = 3 * time.Second })
	decode := startTestEngine(t, engine.RoleDecode, nil)
	losing, onItsWay := loseFirst(t, decode.URL())

	killed := serveProcessFor(t, prefill.URL(), losing, "", io.Discard, "--redis", redis.Addr(), "--replica", "killed", "--pairs-first")
	survivor := func() *cluster {
		return newCluster(t, shape{config: func(cfg *config) {
			cfg.redis.addrs = []string{redis.Addr()}
			cfg.servers[0].add(serverEntry{URL: prefill.URL()})
			cfg.servers[1].add(serverEntry{URL: losing})
		}})
	}
	survivors := []*cluster{survivor(), survivor()}
	all := func(metric string, want float64) func() bool {
		return func() bool {
			return survivors[0].metric(metric) == want && survivors[1].metric(metric) == want
		}
	}
	eventually(t, "survivors have their servers and share", func() bool {
		return all("tandem_server_up", 2)() && all("tandem_replicas_connected", 1)()
	})
	proxy := balance(t, killed.base, survivors[0].base, survivors[1].base)
	client := newTestClient(t)
	ask := func() (status int, err error) {
		resp, err := client.Post("http://"+proxy+"/v1/chat/completions", "application/json", strings.NewReader(chatBody("")))
		if err != nil {
			return 0, err
		}
		return readResponse(resp).status, nil
	}

	lost := make(chan error, 1)
	go func() {
		status, err := ask()
		if err == nil {
			t.Errorf("the client of the dead replica got an answer: %d", status)
		}
		lost <- err
	}()
	<-onItsWay
	if s := prefill.State(); s.HandoffsOpen != 1 {
		t.Errorf("%d hand-offs wait to be fetched", s.HandoffsOpen)
	}
	eventually(t, "the others know of its work", all("tandem_replicas_busy", 1))
	killed.process.Kill()
	t.Logf("the client sees: %v", <-lost)

	if status, err := ask(); status != 200 {
		t.Errorf("tried again: %d %v", status, err)
	}
	eventually(t, "the others forget its work", all("tandem_replicas_busy", 0))
	for _, c := range survivors {
		for _, s := range c.node.fleet.Servers() {
			for _, leg := range []pools.Role{pools.Prefill, pools.Decode} {
				if left := s.InFlight(leg, time.Now()); left != (pools.InFlight{}) {
					t.Errorf("%s still counts %+v", s.ID(), left)
				}
			}
		}
	}
	eventually(t, "the engine's lease frees the KV", func() bool {
		s := prefill.State()
		return s.HandoffsOpen == 0 && s.HandoffsExpired == 1 && s.KVBlocksUsed == 0
	})
	// A busy machine may have had a probe request sent there too.
	if s, asked := decode.State(), len(requests([]*engine.Engine{decode}, "/v1/chat/completions")); s.DecodesDone != 1 || asked != 1 {
		t.Errorf("decode served %d of a pair, of %d requests", s.DecodesDone, asked)
	}
}

// loseFirst is an address of an engine. The first generation that is sent there does not
// arrive, which it tells.
func loseFirst(t *testing.T, engine string) (address string, onItsWay <-chan struct{}) {
	t.Helper()
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	var lost atomic.Bool
	sent, through := make(chan struct{}), httputil.NewSingleHostReverseProxy(to)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && lost.CompareAndSwap(false, true) {
			_, _ = io.Copy(io.Discard, r.Body) // net/http sees that the client leaves once it is read
			close(sent)
			<-r.Context().Done()
			return
		}
		through.ServeHTTP(w, r)
	}))
	t.Cleanup(proxy.Close)
	return proxy.URL, sent
}

// balance passes each connection to the next of some addresses that takes it, as a
// Kubernetes service does: it knows nothing of requests.
func balance(t *testing.T, to ...string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	t.Cleanup(open.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	open.Go(func() {
		for n := 0; ; n++ {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			open.Go(func() { pass(client, to, n) })
		}
	})
	return listener.Addr().String()
}

// pass takes a client's connection to the n-th address, or the next that takes it.
func pass(client net.Conn, to []string, n int) {
	defer func() { _ = client.Close() }()
	for i := range to {
		server, err := net.Dial("tcp", strings.TrimPrefix(to[(n+i)%len(to)], "http://"))
		if err != nil {
			continue
		}
		var up sync.WaitGroup
		up.Go(func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		})
		_, _ = io.Copy(client, server)
		_ = client.Close()
		up.Wait()
		return
	}
}
