package serving

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd/cost"
)

// newFetchingCluster has a pair for which computing a prompt takes longer than fetching its KV.
func newFetchingCluster(t *testing.T, configure func(*config)) *cluster {
	t.Helper()
	return newCuttingCluster(t, 1, 1, func(cfg *engine.Config) { cfg.TimeScale = 1 }, func(cfg *config) {
		inPieces(cfg)
		cfg.pd.Pieces = cost.Pieces(time.Hour) // prompts are computed whole
		cfg.cost.KVBytesPerToken = 4 << 10     // a busy machine's delays are learned as the links' speed
		believe(cfg, 1/computing)
		configure(cfg)
	})
}

// loseCache has a server lose what it holds of prompts, and waits until the gateway knows what all of them hold.
func (c *cluster) loseCache(e *engine.Engine) {
	c.t.Helper()
	if got := c.raw("POST", e.URL()+"/reset_prefix_cache"); got.status != 200 {
		c.t.Fatalf("reset_prefix_cache: %d", got.status)
	}
	for _, s := range c.node.fleet.Servers() {
		c.settle(s.ID())
	}
	eventually(c.t, "nothing is believed that engines have not said", func() bool { return c.metric("tandem_kv_index_blocks", `tier="guessed"`) == 0 })
}

// letMeet asks for what could be fetched between two servers that have not met, and waits until they have.
func (c *cluster) letMeet(path, body string) {
	c.t.Helper()
	if got := c.post(path, body); got.status != 200 {
		c.t.Fatalf("%d %s", got.status, got.body)
	}
	eventually(c.t, "the two servers have met", func() bool { return c.metric("tandem_kv_fetches_total", `outcome="met"`) == 1 })
	if n := c.metric("tandem_kv_fetches_total"); n != 1 {
		c.t.Errorf("%v requests waited for that", n-1)
	}
}

// askByIDs is a completion whose prompt is so many token ids.
func askByIDs(count int) string {
	return askWithIDs(9, count, func(i int) int { return 100 + i%1000 })
}

// askWithIDs is a completion of so many tokens at most, whose prompt is these token ids.
func askWithIDs(maxTokens, count int, id func(i int) int) string {
	ids := make([]string, count)
	for i := range ids {
		ids[i] = strconv.Itoa(id(i))
	}
	return fmt.Sprintf(`{"model":"test-model","max_tokens":%d,"prompt":[%s]}`, maxTokens, strings.Join(ids, ","))
}

// What prefill has lost of a prompt and decode holds, prefill fetches from there, whatever the API: it computes the rest
// alone, and the answer is that of one engine.
func TestFetch_WhatPrefillHasLost(t *testing.T) {
	t.Parallel()
	c := newFetchingCluster(t, func(*config) {})
	truth, p, d := startTestEngine(t, engine.RoleBoth, takesFirst), c.prefill[0], c.decode[0]
	type request struct{ path, body string }
	var asked []request
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} {
		for _, extra := range []string{`,"max_tokens":9`, `,"max_tokens":9,"stream":true`} {
			asked = append(asked, request{path, askOf(path, len(asked), 6, extra)}) // which a busy machine reads before a fetch is given up
			c.post(path, asked[len(asked)-1].body)
		}
	}
	c.loseCache(p)
	c.letMeet(asked[0].path, asked[0].body)
	asked = asked[1:]
	for _, r := range asked {
		found := engineMetric(t, p, "vllm:prefix_cache_hits_total")
		got, want := c.post(r.path, r.body), askEngine(t, truth, r.path, r.body)
		if got.status != 200 || got.text() != want.text() {
			t.Errorf("%s: %d %s", r.path, got.status, got.body)
		}
		decision, table := c.explained(got.header.Get("X-Request-Id"))
		if fetch := decision.Attempts[0].Fetch; !strings.Contains(fetch, "tokens from "+strings.TrimPrefix(d.URL(), "http://")+" in ") || !strings.Contains(table, fetch) {
			t.Errorf("%s: it fetched %q:\n%s", r.path, fetch, table)
		}
		if found = engineMetric(t, p, "vllm:prefix_cache_hits_total") - found; found < 4000 {
			t.Errorf("%s: prefill found %v tokens in its cache", r.path, found)
		}
	}
	if fetched := c.metric("tandem_kv_fetches_total", `outcome="fetched"`); fetched != float64(len(asked)) {
		t.Errorf("%v of %d prompts were fetched", fetched, len(asked))
	}
	if tokens := c.metric("tandem_kv_fetched_tokens_total"); tokens < float64(4000*len(asked)) {
		t.Errorf("%v tokens were fetched of %d prompts", tokens, len(asked))
	}
	if n := c.metric("tandem_retries_total") + c.metric("tandem_silent_recomputes_total") + c.metric("tandem_handoffs_stranded_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
	eventually(t, "no hand-off is left", func() bool { return p.State().HandoffsOpen+d.State().HandoffsOpen == 0 })
	c.checkIdle(0)
}

// A fetch that fails costs a request its time and nothing else: prefill computes the prompt. No server is held to be
// faulty for it, and the next request does not try it between these two.
func TestFetch_WhereItFailsPrefillComputes(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		onDecode bool
		what     engine.Fault
	}{
		"decode keeps nothing":   {true, engine.Fault{Kind: engine.FaultDropHandoff, Leg: "prefill"}},
		"decode fails":           {true, engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "prefill"}},
		"decode is silent":       {true, engine.Fault{Kind: engine.FaultHangBeforeHeaders, Leg: "prefill"}},
		"prefill reads nothing":  {false, engine.Fault{Kind: engine.FaultStatus, Status: 500, Leg: "decode", Count: 1}},
		"prefill reads for ever": {false, engine.Fault{Kind: engine.FaultHangBeforeHeaders, Leg: "decode", Count: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFetchingCluster(t, func(*config) {})
			p, d := c.prefill[0], c.decode[0]
			const path = "/v1/completions"
			body := askByIDs(8000)
			want := c.post(path, body)
			c.loseCache(p)
			c.letMeet(path, body)
			c.loseCache(p)
			on := p
			if fault.onDecode {
				on = d
			}
			on.SetFault(fault.what)
			got := c.post(path, body)
			sameAnswer(t, name, got, want)
			if n := c.metric("tandem_kv_fetches_total", `outcome="not_fetched"`); n != 1 {
				t.Errorf("%v fetches failed", n)
			}
			if n := c.metric("tandem_retries_total"); n != 0 {
				t.Errorf("%v legs were tried again", n)
			}
			c.loseCache(p)
			sameAnswer(t, name, c.post(path, body), want)
			if n := c.metric("tandem_kv_fetches_total"); n != 2 { // with the one that let them meet
				t.Errorf("it was tried again: %v", n)
			}
		})
	}
}

// Without --fetch-kv prefill computes what it has lost.
func TestFetch_NotWhereItIsSwitchedOff(t *testing.T) {
	t.Parallel()
	c := newFetchingCluster(t, func(cfg *config) { cfg.pd.FetchKV = false })
	const path = "/v1/completions"
	for i := range 2 {
		if got := c.post(path, askByIDs(8000)); got.status != 200 {
			t.Fatal(fmt.Sprint(i, got.body))
		}
		c.loseCache(c.prefill[0])
	}
	if n := c.metric("tandem_kv_fetches_total"); n != 0 {
		t.Errorf("%v fetches", n)
	}
}
