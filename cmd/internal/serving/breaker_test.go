package serving

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pools"
	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// Linkerd's experiment (linkerd.io, tasks/circuit-breakers: 51 % success without a
// breaker, 99.83 % with): one of two servers fails every request, ten requests a
// second for a minute. Here ten times faster, times of the breaker included, save that
// of a probe request, which a busy machine needs; one after the other, as they are when they
// come every 100 ms.
func TestBreaker_TheLinkerdExperiment(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{0, 3} {
		t.Run(fmt.Sprintf("%d retries", retries), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{prefill: 1, decode: 2, config: func(cfg *config) {
				cfg.pd.MaxRetries = retries
				cfg.pools.ProbeInterval = 100 * time.Millisecond
				cfg.pools.Breaker.Ejection, cfg.pools.Breaker.MaxEjection = 100*time.Millisecond, 6*time.Second
			}})
			c.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500})
			bad := c.node.fleet.Servers()[1]

			const requests = 600
			body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":"Are you there?"}]}`, testModel)
			failed, after, failedAfter := 0, 0, 0
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for range requests {
				<-pace.C
				ejected := bad.Breaker(pools.Decode, time.Now()) != breaker.Closed
				ok := c.post("/v1/chat/completions", body).status == 200
				if ejected {
					after++
				}
				if !ok {
					failed++
				}
				if !ok && ejected {
					failedAfter++
				}
			}
			reached := len(ofClients(c.decode[0]))
			t.Logf("success %.2f %%; after the first ejection %.2f %% of %d; %d reached the failing server, probe requests failed %v times",
				100*float64(requests-failed)/requests, 100*float64(after-failedAfter)/float64(after), after,
				reached, c.metric("tandem_probe_requests_total", `outcome="failed"`))
			allowed := 6 // 99 %
			if retries > 0 {
				allowed = 0
			}
			if failed > allowed || failedAfter > 0 {
				t.Errorf("%d of %d failed, %d of them after the first ejection", failed, requests, failedAfter)
			}
			if why := gjson.Get(c.get("/debug/servers").body, `#(id=="`+bad.ID()+`").breaker_reasons.decode`).String(); !strings.Contains(why, "500") {
				t.Errorf("it is ejected because of %q", why)
			}
			if float64(reached) > 0.03*requests {
				t.Errorf("%d requests reached the failing server", reached)
			}
		})
	}
}

// ofClients are the clients' requests that reached an engine.
func ofClients(e *engine.Engine) []engine.Request {
	return requests([]*engine.Engine{e}, "/v1/chat/completions")
}

// A zombie answers health checks and does no work. It is out within five requests,
// and back when its work is good again, without a client's request to prove it.
func TestBreaker_AServerThatOnlyLooksHealthyIsEjectedWithinFiveRequestsAndReturns(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"prefill", "decode"} {
		for _, fault := range []engine.Fault{
			{Kind: engine.FaultStatus, Status: 500},
			{Kind: engine.FaultStatus, Status: 502},
			{Kind: engine.FaultHangBeforeHeaders},
			{Kind: engine.FaultHangAfterHeaders},
			{Kind: engine.FaultEmptyStream},
			{Kind: engine.FaultGarbageSSE},
			{Kind: engine.FaultRefuse, Path: "*"}, // takes the connection, then resets it
		} {
			t.Run(fmt.Sprintf("%s/%s%d", role, fault.Kind, fault.Status), func(t *testing.T) {
				t.Parallel()
				// In real time, or the server that served first looks so fast that the
				// other is not used at all.
				realTime := func(cfg *engine.Config) { cfg.TimeScale = 1 }
				c := newCluster(t, shape{prefill: 2, decode: 2, engine: realTime, config: func(cfg *config) {
					cfg.pd.PrefillTimeout, cfg.pd.FirstEventTimeout = 2*time.Second, 2*time.Second
					cfg.pools.Breaker.Ejection, cfg.pools.Breaker.MaxEjection = 100*time.Millisecond, 200*time.Millisecond
					cfg.pools.Breaker.Probe = 2 * time.Second
				}})
				zombie := c.prefill[0]
				leg := pools.Prefill
				if role == "decode" {
					zombie, leg = c.decode[0], pools.Decode
				}
				var server *pools.Server
				for _, s := range c.node.fleet.Servers() {
					if "http://"+s.ID() == zombie.URL() {
						server = s
					}
				}
				if fault.Path == "*" {
					fault.Path = "/v1/chat/completions" // and only that: its probe requests pass
				}
				zombie.SetFault(fault)
				story := 0
				body := func() string { // no two alike, or locality decides
					story++
					return strings.Replace(chatBodyOf(2, `,"stream":true`), "Two riders", fmt.Sprintf("Story %d: two riders", story), 1)
				}
				ejections := func() float64 {
					return c.metric("tandem_breaker_ejections_total", `leg="`+role+`"`, `server="`+server.ID()+`"`)
				}
				for deadline := time.Now().Add(time.Minute); ejections() == 0 && time.Now().Before(deadline); {
					if got := c.post("/v1/chat/completions", body()); got.status != 200 || got.err != nil {
						t.Fatalf("%d, %v: %s", got.status, got.err, got.body)
					}
				}
				if n := len(ofClients(zombie)); ejections() == 0 || n > 5 {
					t.Fatalf("%v ejections after %d requests", ejections(), n)
				}
				zombie.ClearFaults()
				before := len(ofClients(zombie))
				eventually(t, "a probe request proves it", func() bool { return server.Breaker(leg, time.Now()) == breaker.Closed })
				if n := len(ofClients(zombie)) - before; n != 0 {
					t.Errorf("%d clients' requests reached it before", n)
				}
				usable, _ := pools.Candidates(nil, c.node.fleet.Servers(), testModel, leg, 0.5, time.Now())
				if !slices.Contains(usable, server) {
					t.Error("it is proved and not used")
				}
			})
		}
	}
}

// A lone server is used although its probe requests fail: nothing else is there.
func TestBreaker_ALoneServerUnderProofTakesAll(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.pools.Breaker.Ejection, cfg.pools.Breaker.MaxEjection = 10*time.Millisecond, 20*time.Millisecond
		cfg.pools.Breaker.Consecutive = 3
		cfg.pd.MaxRetries = 0
	}})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 502, Path: "/v1/completions"})
	for range 3 {
		c.post("/v1/completions", `{"model":"test-model","max_tokens":1,"prompt":"hi"}`)
	}
	eventually(t, "probe requests fail", func() bool { return c.metric("tandem_probe_requests_total", `outcome="failed"`) > 2 })
	if n := c.metric("tandem_pool_panic", `role="decode"`); n != 1 {
		t.Errorf("panic is %v", n)
	}
	results := make(chan answer)
	for range 8 {
		go func() { results <- c.post("/v1/chat/completions", chatBody("")) }()
	}
	for range 8 {
		if got := <-results; got.status != 200 {
			t.Errorf("%d: %s", got.status, got.body)
		}
	}
}

// Breakers that are wrong about most of a pool must not bring the rest down.
func TestBreaker_PanicUsesAllAndProbeRequestsEndIt(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 4, config: func(cfg *config) {
		cfg.pd.MaxRetries = 0
		cfg.pools.Breaker.Ejection = 4 * time.Second // no probe request ends it while it is looked at
	}})
	var forced []*pools.Server
	for _, s := range c.node.fleet.Servers() {
		if s.Role == pools.Decode && len(forced) < 3 {
			forced = append(forced, s)
			for range 5 {
				lease, err := s.Claim(pools.Decode, curve.Work{}, false, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				lease.RecordResult(fmt.Errorf("a fault that was not the server's"))
				lease.Release()
			}
		}
	}
	if n := c.metric("tandem_pool_panic", `role="decode"`); n != 1 {
		t.Errorf("panic is %v with three of four ejected", n)
	}
	if n := c.metric("tandem_breaker_would_eject"); n != 3 {
		t.Errorf("%v servers would be out", n)
	}
	served := make(map[string]int)
	for n := 0; n < 60 || len(served) < 4 && n < 600; n++ {
		got := c.post("/v1/chat/completions", chatBody(""))
		if got.status != 200 {
			t.Fatalf("%d: %s", got.status, got.body)
		}
		served[got.header.Get("X-Tandem-Decode")]++
	}
	if len(served) != 4 {
		t.Errorf("served by %v", served)
	}
	eventually(t, "all are proved", func() bool {
		for _, s := range forced {
			if s.Breaker(pools.Decode, time.Now()) != breaker.Closed {
				return false
			}
		}
		return c.metric("tandem_pool_panic", `role="decode"`)+c.metric("tandem_breaker_would_eject") == 0
	})
}

// An engine that wants a key gets it from probes and probe requests, and a client
// without one stays outside.
func TestBreaker_EnginesWithAKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.APIKey = "sesame" }, config: func(cfg *config) {
		cfg.engines.key = file
		cfg.pools.Breaker.Ejection = 10 * time.Millisecond
	}})
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 401 {
		t.Errorf("a client without a key: %d %s", got.status, got.body)
	}
	if got := c.post("/v1/chat/completions", chatBody(""), "Authorization", "Bearer sesame"); got.status != 200 {
		t.Errorf("a client with the key: %d %s", got.status, got.body)
	}
	for _, s := range c.node.fleet.Servers() {
		s.Suspect(s.Role)
	}
	eventually(t, "probe requests of both roles generate", func() bool {
		return c.metric("tandem_probe_requests_total", `outcome="passed"`) == 2 &&
			c.prefill[0].State().RequestsByPath["/v1/completions"] == 1 && c.decode[0].State().AggregatedDone >= 1
	})
	if s := c.prefill[0].State(); s.HandoffsOpen != 0 || s.KVBlocksUsed != 0 {
		t.Errorf("the probe request stranded %d hand-offs and %d blocks", s.HandoffsOpen, s.KVBlocksUsed)
	}
}

// SGLang's servers take no request without a partner: their own health check is
// the probe request.
func TestBreaker_ProbeRequestsOfSGLang(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: sglangEngine, config: func(cfg *config) {
		cfg.pools.Breaker.Ejection, cfg.pools.Breaker.MaxEjection = 10*time.Millisecond, 20*time.Millisecond
	}})
	for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		e.SetFault(engine.Fault{Kind: engine.FaultStatus, Status: 500, Path: "/health_generate"})
	}
	for _, s := range c.node.fleet.Servers() {
		s.Suspect(s.Role)
	}
	eventually(t, "probe requests of both fail", func() bool {
		return c.metric("tandem_breaker_state", `leg="prefill"`) > 0 && c.metric("tandem_breaker_state", `leg="decode"`) > 0
	})
	for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		e.ClearFaults()
	}
	eventually(t, "probe requests prove both", func() bool { return c.metric("tandem_breaker_state") == 0 })
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// Whatever the connector, a probe request passes on a healthy server and strands nothing.
func TestBreaker_ProbeRequestsOfEachConnector(t *testing.T) {
	t.Parallel()
	for _, connector := range engine.Connectors() {
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.Connector = connector }})
			for _, s := range c.node.fleet.Servers() {
				s.Suspect(s.Role)
			}
			eventually(t, "probe requests pass", func() bool { return c.metric("tandem_probe_requests_total", `outcome="passed"`) == 2 })
			if s := c.prefill[0].State(); s.HandoffsOpen != 0 || s.KVBlocksUsed != 0 {
				t.Errorf("stranded %d hand-offs and %d blocks", s.HandoffsOpen, s.KVBlocksUsed)
			}
			if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
}
