package serving

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// startProxy puts a proxy that can misbehave in front of an address.
func startProxy(t *testing.T, to string) *toxiproxy.Proxy {
	t.Helper()
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(api, "proxy", "127.0.0.1:0", to)
	if err := proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	return proxy
}

// The engine is well, and the network to it is not. With another server there no
// request is lost, and every answer is the right one.
func TestNetwork_OneBadWayCostsNoRequest(t *testing.T) {
	t.Parallel()
	toxins := map[string]string{
		"reset":                 `{"type":"reset_peer","attributes":{"timeout":0}}`,
		"reset after a while":   `{"type":"reset_peer","attributes":{"timeout":30}}`,
		"requests swallowed":    `{"type":"timeout","stream":"upstream","attributes":{"timeout":0}}`,
		"answers swallowed":     `{"type":"timeout","stream":"downstream","attributes":{"timeout":0}}`,
		"closed without a word": `{"type":"timeout","attributes":{"timeout":10}}`,
		"slow":                  `{"type":"latency","attributes":{"latency":200,"jitter":50}}`,
		"a trickle":             `{"type":"bandwidth","attributes":{"rate":20}}`,
		"in small pieces":       `{"type":"slicer","attributes":{"average_size":20,"size_variation":10,"delay":50}}`,
		"cut after 0 bytes":     `{"type":"limit_data","attributes":{"bytes":0}}`,
		"cut in the headers":    `{"type":"limit_data","attributes":{"bytes":40}}`,
		"cut in the body":       `{"type":"limit_data","attributes":{"bytes":1500}}`,
		"refused":               "",
	}
	for _, role := range []string{"prefill", "decode"} {
		for name, toxin := range toxins {
			t.Run(fmt.Sprintf("%s/%s", role, name), func(t *testing.T) {
				t.Parallel()
				var proxy *toxiproxy.Proxy
				c := newCluster(t, shape{prefill: 2, decode: 2, config: func(cfg *config) {
					faultTimeouts(cfg)
					cfg.pd.ContinueStreams = true
					cfg.pd.RetryFloor = 100 // budgets have tests of their own
					list := &cfg.servers[0]
					if role == "decode" {
						list = &cfg.servers[1]
					}
					proxy = startProxy(t, strings.TrimPrefix(list.specs[0].URL, "http://"))
					list.specs[0].URL = "http://" + proxy.Listen
				}})
				if toxin == "" {
					proxy.Stop()
				} else if _, err := proxy.Toxics.AddToxicJson(strings.NewReader(toxin)); err != nil {
					t.Fatal(err)
				}
				bad := append(c.prefill, c.decode...)[map[string]int{"prefill": 0, "decode": 2}[role]]
				met := func() bool { return len(ofClients(bad)) > 0 || c.metric("tandem_retries_total") > 0 }
				for round := 0; round < 10 && !met(); round++ {
					var clients sync.WaitGroup
					for i := range 8 { // at once and all different, so that all servers are used
						extra := []string{"", `,"stream":true`}[i%2]
						body := strings.Replace(chatBody(extra), "Two riders", fmt.Sprintf("Story %d.%d: two riders", round, i), 1)
						clients.Go(func() {
							got, want := c.post("/v1/chat/completions", body), reference(t, "/v1/chat/completions", body)
							if got.status != 200 || got.err != nil || got.text() != want.text() {
								t.Errorf("%d, %v: %.300s", got.status, got.err, got.body)
							}
						})
					}
					clients.Wait()
				}
				if !met() {
					t.Error("no request went that way: the test proves nothing")
				}
				neverTwice(t, c)
			})
		}
	}
}
