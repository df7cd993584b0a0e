package serving

import (
	"net/http"
	"strings"
	"testing"
)

const page = "https://chat.example.com"

func preflight(t *testing.T, c *cluster, origin string) answer {
	t.Helper()
	req, err := http.NewRequest(http.MethodOptions, c.base+chatPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", origin)
	req.Header.Set("Access-Control-Request-Method", "POST")
	req.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return readResponse(resp)
}

// A browser asks first, without a key, and then reads the stream and the headers that SDKs need.
func TestCORS_PagesOfAnOriginMayAsk(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		withKeys(t, "sk-ada tenant=ada")(cfg)
		cfg.gateway.Origins = []string{page}
	}})
	got := preflight(t, c, page)
	if got.status != 204 || got.header.Get("Access-Control-Allow-Origin") != page || !strings.Contains(got.header.Get("Access-Control-Allow-Methods"), "POST") ||
		!strings.Contains(got.header.Get("Access-Control-Allow-Headers"), "authorization") || got.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("preflight: %d %v", got.status, got.header)
	}
	for name, key := range map[string]string{"an answer": "sk-ada", "a refusal": "sk-eve"} {
		got := c.post(chatPath, chatBody(`,"stream":true`), "Authorization", "Bearer "+key, "Origin", page)
		if got.header.Get("Access-Control-Allow-Origin") != page || !strings.Contains(got.header.Get("Access-Control-Expose-Headers"), "X-Request-Id") {
			t.Errorf("%s: %d %v", name, got.status, got.header)
		}
	}
	if got := preflight(t, c, "https://evil.example.org"); got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another site: %d %v", got.status, got.header)
	}
}

func TestCORS_IsOffUnlessConfigured(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	got := c.post(chatPath, chatBody(""), "Origin", page)
	if pre := preflight(t, c, page); pre.status != 405 || pre.header.Get("Access-Control-Allow-Origin") != "" || got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("preflight %d %v, then %v", pre.status, pre.header, got.header)
	}
}

func TestConfig_RefusesWhatIsNoOrigin(t *testing.T) {
	for _, origins := range [][]string{{"chat.example.com"}, {page + "/"}, {page + "/app"}, {"ftp://x"}, {"*", page}, {"null"}} {
		cfg := defaultConfig()
		cfg.gateway.Origins = origins
		if err := cfg.gateway.Validate(); err == nil || !strings.Contains(err.Error(), "cors-origin") {
			t.Errorf("%q: %v", origins, err)
		}
	}
	for _, origins := range [][]string{nil, {"*"}, {page}, {"http://localhost:3000", "https://*.example.com"}} {
		cfg := defaultConfig()
		cfg.gateway.Origins = origins
		if err := cfg.gateway.Validate(); err != nil {
			t.Errorf("%q: %v", origins, err)
		}
	}
}
