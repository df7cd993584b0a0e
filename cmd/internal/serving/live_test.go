package serving

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/redisserver"
)

// The live page is where / of the admin port leads. It shows the servers, the request that was just
// served, the pair that moved its KV and the model's times, and is kept current by events, which end
// with the gateway and do not keep it from ending.
func TestLivePage_ShowsAServedRequest(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	if page := c.raw(http.MethodGet, c.admin+"/"); page.status != 200 || !strings.Contains(page.body, `src="/ui/app.js"`) {
		t.Fatalf("%d %s", page.status, page.body)
	}
	got := c.post("/v1/chat/completions", chatBody(`,"stream":true`))
	if got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	var state string
	eventually(t, "the request is on the page", func() bool {
		state = c.raw(http.MethodGet, c.admin+"/ui/state").body
		return gjson.Get(state, "history.lately.answers").Int() == 1
	})
	for path, want := range map[string]string{
		"servers.#":                  "2",
		"servers.0.role":             "prefill",
		"links.pairs.#":              "1",
		"decisions.0.id":             got.header.Get("X-Request-Id"),
		"decisions.0.outcome":        "served",
		"decisions.0.chosen.prefill": got.header.Get("X-Tandem-Prefill"),
		"models.#":                   "1",
		"history.lately.first":       "1",
		"gateway.ready":              "true",
	} {
		if is := gjson.Get(state, path).String(); is != want {
			t.Errorf("%s is %q, want %q", path, is, want)
		}
	}
	if parts := gjson.Get(state, "history.lately.parts"); parts.Get("prefill_ms").Num <= 0 || parts.Get("transfer_ms").Num <= 0 {
		t.Errorf("parts %s", parts)
	}

	resp, err := c.client.Get(c.admin + "/ui/events")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	events := bufio.NewReader(resp.Body)
	if first, err := events.ReadString('\n'); first != "event: state\n" || err != nil {
		t.Fatalf("%q %v", first, err)
	}
	begun := time.Now()
	if err := c.stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Errorf("the events do not end as an answer does: %v", err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("a page that is open keeps the gateway for %v", took)
	}
}

// A gateway whose Redis is away says so, to who looks at the page or at tandem top.
func TestLive_SaysThatRedisIsAway(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.redis.addrs = []string{r.Addr()} }})
	apart := func() bool {
		return gjson.Get(c.raw(http.MethodGet, c.admin+"/ui/state").body, "gateway.apart").Bool()
	}
	eventually(t, "work is shared", func() bool { return c.metric("tandem_replicas_connected") == 1 })
	if apart() {
		t.Error("Redis is said to be away, and answers")
	}
	r.Kill()
	eventually(t, "Redis is said to be away", apart)
	r.Restart()
	eventually(t, "Redis is said to be back", func() bool { return !apart() })
}
