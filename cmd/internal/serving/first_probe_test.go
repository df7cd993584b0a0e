package serving

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// heldEngine is the address of an engine that answers nothing until answers is closed.
func heldEngine(t *testing.T, role string, answers <-chan struct{}) string {
	to, err := url.Parse(startTestEngine(t, role, nil).URL())
	if err != nil {
		t.Fatal(err)
	}
	engine := httputil.NewSingleHostReverseProxy(to)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answers:
			engine.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A gateway that has begun to listen and has no answer to its first probes yet, or does not know yet which servers
// there are, does not refuse what comes: it waits for them. It is not ready meanwhile.
func TestRestart_ARequestBeforeTheFirstProbesIsNotRefused(t *testing.T) {
	for name, source := range map[string]func(t *testing.T, cfg *config, prefill, decode string) (begin func()){
		"servers of the configuration": func(_ *testing.T, cfg *config, prefill, decode string) func() {
			cfg.servers[0].add(serverEntry{URL: prefill})
			cfg.servers[1].add(serverEntry{URL: decode})
			return func() {}
		},
		"servers that have names": func(t *testing.T, cfg *config, prefill, decode string) func() {
			zone := newZone(t)
			cfg.discovery.dns.Server = zone.addr
			for i, address := range []string{prefill, decode} {
				u, err := url.Parse(address)
				if err != nil {
					t.Fatal(err)
				}
				name := []string{"prefill.test", "decode.test"}[i]
				zone.records[name+"."] = []string{name + ". 0 IN A " + u.Hostname()}
				cfg.servers[i].add(serverEntry{URL: "dns+http://" + name + ":" + u.Port()})
			}
			zone.mu.Lock() // so that it answers nothing
			return zone.mu.Unlock
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answers := make(chan struct{})
			letAnswer := sync.OnceFunc(func() { close(answers) })
			t.Cleanup(letAnswer)
			c := &cluster{t: t, client: newTestClient(t)}
			cfg := testConfig()
			cfg.pd.UnresponsiveWait = time.Minute
			begin := source(t, &cfg, heldEngine(t, engine.RolePrefill, answers), heldEngine(t, engine.RoleDecode, answers))
			c.run(cfg, nil)
			chat, models := make(chan answer, 1), make(chan answer, 1)
			go func() { chat <- c.post("/v1/chat/completions", chatBody("")) }()
			go func() { models <- c.raw(http.MethodGet, c.base+"/v1/models") }()
			eventually(t, "both wait, or have an answer", func() bool {
				return len(chat)+len(models) > 0 || c.metric("tandem_unresponsive_waits_total") == 2
			})
			if got := c.get("/readyz"); got.status != http.StatusServiceUnavailable {
				t.Errorf("/readyz answers %d before a probe was answered", got.status)
			}
			begin()
			letAnswer()
			if got := <-chat; got.status != http.StatusOK || got.text() == "" {
				t.Errorf("the chat gets %d %s", got.status, got.body)
			}
			if got := <-models; !strings.Contains(got.body, `"`+testModel+`"`) {
				t.Errorf("the models are %s", got.body)
			}
		})
	}
}
