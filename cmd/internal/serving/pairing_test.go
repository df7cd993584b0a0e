package serving

import (
	"strings"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/testlog"
)

// unlike starts prefill with KV blocks of 32 tokens before decode with 16.
func unlike(cfg *engine.Config) {
	if cfg.Role == engine.RolePrefill {
		cfg.BlockSize = 32
	}
}

func TestPairing_PoolsThatMakeNoPairAreNotSilent(t *testing.T) {
	t.Parallel()
	var log testlog.Buffer
	c := newCluster(t, shape{prefill: 2, decode: 1, engine: unlike, log: &log})
	const reason = "block_tokens: 32 (prefill), 16 (decode)"
	got := c.post(chatPath, chatBody(""))
	if got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" {
		t.Fatalf("%d by %v: %s", got.status, got.header, got.body)
	}
	d, table := c.explained(got.header.Get("X-Request-Id"))
	if d.Attempts[0].AggregatedBecause != "no_pair" || d.Attempts[0].Differ != reason || !strings.Contains(table, reason) {
		t.Errorf("%+v\n%s", d.Attempts[0], table)
	}
	eventually(t, "the log says what differs", func() bool {
		return strings.Contains(log.String(), `"level":"WARN"`) && strings.Contains(log.String(), reason)
	})
	if n := c.metric("tandem_aggregated_requests_total", `reason="no_pair"`); n != 1 {
		t.Errorf("%v requests alone because of it, want 1", n)
	}
	if !strings.Contains(c.get("/metrics").body, `tandem_pool_pairs{model="`+testModel+`"} 0`) {
		t.Error("tandem_pool_pairs is not 0")
	}

	// A decode server that fits, and all is well.
	fits := startTestEngine(t, engine.RoleDecode, func(cfg *engine.Config) { cfg.BlockSize = 32 })
	next := c.node.cfg
	next.servers[1].specs = append(next.servers[1].specs[:1:1], serverEntry{URL: fits.URL(), Connector: "nixl"}.Spec(next.servers[1].role))
	if err := c.node.reload(next); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there are two pairs", func() bool { return c.metric("tandem_pool_pairs") == 2 })
	eventually(t, "the log says so", func() bool { return strings.Contains(log.String(), "make pairs again") })
	if n := strings.Count(log.String(), reason); n != 1 {
		t.Errorf("what differs was said %d times, want 1", n)
	}
	if got := c.post(chatPath, chatBody("")); got.header.Get("X-Tandem-Prefill") == "" {
		t.Errorf("served by %v", got.header)
	}
}

// A single server of both roles lacks a second one, and nothing keeps the two apart.
func TestPairing_ASingleServerOfBothRolesHasNoPrefillBesideIt(t *testing.T) {
	t.Parallel()
	e := startTestEngine(t, engine.RoleBoth, nil)
	c := newCluster(t, shape{config: func(cfg *config) { cfg.servers[2].add(serverEntry{URL: e.URL()}) }})
	eventually(t, "it is up", func() bool { return c.get("/readyz").status == 200 })
	got := c.post(chatPath, chatBody(""))
	d, table := c.explained(got.header.Get("X-Request-Id"))
	if got.status != 200 || d.Attempts[0].AggregatedBecause != "no_prefill" || !strings.Contains(table, "decode ran alone: no_prefill") {
		t.Errorf("%d\n%s", got.status, table)
	}
}

// Where decode must not compute prompts the client is told, without a word of the servers.
func TestPairing_WithoutOneDisaggregationCannotBeEnforced(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: unlike, config: func(cfg *config) { cfg.pd.EnforceDisaggregation = true }})
	got := c.post(chatPath, chatBody(""))
	if got.status != 503 || !strings.Contains(got.body, "no_pair") || strings.Contains(got.body, "32") {
		t.Errorf("%d %s", got.status, got.body)
	}
}
