package serving

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/process"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// loopOf starts gateways that listen at given addresses, each of which lists an engine and all of these addresses.
func loopOf(t *testing.T, log *testlog.Buffer, addresses ...string) (gateways []*cluster, e *engine.Engine, cfg config) {
	t.Helper()
	e = startTestEngine(t, engine.RoleBoth, nil)
	for _, listen := range addresses {
		c := &cluster{t: t, client: newTestClient(t)}
		cfg = testConfig()
		cfg.ports.listen = listen
		cfg.servers[2].add(serverEntry{URL: e.URL()})
		for _, address := range addresses {
			cfg.servers[2].add(serverEntry{URL: "http://" + address})
		}
		c.run(cfg, log)
		gateways = append(gateways, c)
	}
	return gateways, e, cfg
}

// A gateway that lists its own address, or that of another replica, as behind a Service that it lists, takes it for no
// server: requests would go around. The log, metrics, and check say so.
func TestLoop_GatewaysThatListThemselvesSendThemselvesNothing(t *testing.T) {
	t.Parallel()
	free, err := process.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	var log testlog.Buffer
	gateways, e, cfg := loopOf(t, &log, free...)
	for _, c := range gateways {
		eventually(t, "the engine is up, and probes of its own came to it", func() bool {
			return c.metric("tandem_server_up") == 1 && c.metric("tandem_loops_refused_total") >= 4
		})
	}
	const asked = 12
	for i := range asked {
		if got := gateways[i%2].post(chatPath, chatBody("")); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	if got := len(requests([]*engine.Engine{e}, chatPath)); got != asked {
		t.Errorf("the engine got %d requests of %d", got, asked)
	}
	if up := gateways[0].metric("tandem_server_up"); up != 1 {
		t.Errorf("%v servers are up", up)
	}
	if !strings.Contains(log.String(), "it is this gateway itself, or one with the same servers") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
	var out strings.Builder
	err = check(t.Context(), cfg, &out)
	for _, address := range free {
		if err == nil || !strings.Contains(err.Error(), "server "+address+": it is this gateway itself, or one with the same servers") {
			t.Errorf("check says %v\n%s", err, out.String())
		}
	}
}

// Gateways may have gateways as servers, if none comes back to one before it. One that does is refused where it comes
// back, so that no request goes around.
func TestLoop_ChainsOfGatewaysServe(t *testing.T) {
	t.Parallel()
	free, err := process.FreeAddresses(2)
	if err != nil {
		t.Fatal(err)
	}
	e := startTestEngine(t, engine.RoleBoth, nil)
	start := func(listen string, servers ...string) *cluster {
		c := &cluster{t: t, client: newTestClient(t)}
		cfg := testConfig()
		cfg.ports.listen = listen
		for _, url := range servers {
			cfg.servers[2].add(serverEntry{URL: url, Connector: "aggregated"})
		}
		c.run(cfg, nil)
		return c
	}
	to, err := url.Parse(e.State().URL)
	if err != nil {
		t.Fatal(err)
	}
	var named atomic.Value // User-Agent of the last request
	proxy := httputil.NewSingleHostReverseProxy(to)
	seen := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == chatPath {
			named.Store(r.UserAgent())
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(seen.Close)
	below := start(free[0], seen.URL)
	above := start(free[1], "http://"+free[0])
	eventually(t, "both are up", func() bool { return below.metric("tandem_server_up") == 1 && above.metric("tandem_server_up") == 1 })
	if got := above.post(chatPath, chatBody("")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	own, passed := "tandem/"+below.node.cfg.fleetName(), "tandem/"+above.node.cfg.fleetName()
	if got := named.Load(); got != own+" "+passed {
		t.Errorf("the engine gets User-Agent %q, want %q", got, own+" "+passed)
	}
	for agent, want := range map[string]int{
		"curl/8": 200, "tandem/other": 200, passed: 200, "tandem/other " + own: http.StatusLoopDetected, own: http.StatusLoopDetected, strings.Repeat("tandem/other ", 30): http.StatusLoopDetected,
	} {
		if got := below.post(chatPath, chatBody(""), "User-Agent", agent); got.status != want {
			t.Errorf("of %q: %d %s, want %d", agent, got.status, got.body, want)
		}
	}
}
