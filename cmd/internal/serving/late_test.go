package serving

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pools"
)

// promptOf is a chat request with a prompt of about so many thousand tokens.
func promptOf(thousands int, extra string) string {
	prompt, _ := json.Marshal(fmt.Sprintf("Story %d. ", thousands) + strings.Repeat(longPrompt, thousands*1000/600))
	return `{"model":"` + testModel + `","max_tokens":4,"messages":[{"role":"user","content":` + string(prompt) + `}]` + extra + `}`
}

// heldPrefill is a cluster whose only prefill server has a long prompt that it does not
// answer, so that it is not about to be free. What ends it is the closing of first.
func heldPrefill(t *testing.T, change func(*config)) (c *cluster, first net.Conn) {
	t.Helper()
	realTime := func(cfg *engine.Config) { cfg.TimeScale = 1 }
	c = newCluster(t, shape{prefill: 1, decode: 1, engine: realTime, config: func(cfg *config) {
		cfg.pd.binding = pd.Late
		if change != nil {
			change(cfg)
		}
	}})
	c.prefill[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Count: 1})
	first = c.dialRequest(promptOf(30, ""))
	eventually(t, "the first is in prefill", func() bool { return c.prefill[0].State().ServerLoad == 1 })
	return c, first
}

func TestLate_WhoeverIsShortestGoesFirst(t *testing.T) {
	c, first := heldPrefill(t, nil)
	for i, thousands := range []int{20, 6, 12} {
		conn := c.dialRequest(promptOf(thousands, ""))
		defer func() { _ = conn.Close() }()
		eventually(t, "it waits", func() bool { return c.metric("tandem_waiting_requests") == float64(i+1) })
	}
	if n := c.prefill[0].State().ServerLoad; n != 1 {
		t.Errorf("%d requests in prefill while others wait", n)
	}
	_ = first.Close()
	eventually(t, "all went", func() bool { return len(requests(c.prefill, "/v1/chat/completions")) == 4 })
	var sizes []int
	for _, r := range requests(c.prefill, "/v1/chat/completions")[1:] {
		sizes = append(sizes, r.BodyBytes)
	}
	if !slices.IsSorted(sizes) {
		t.Errorf("prompts in the order of their going: %d bytes", sizes)
	}
}

func TestLate_AClientThatLeavesIsNotServed(t *testing.T) {
	c, first := heldPrefill(t, nil)
	second := c.dialRequest(promptOf(5, ""))
	eventually(t, "the second waits", func() bool { return c.metric("tandem_waiting_requests") == 1 })
	_ = second.Close()
	eventually(t, "no request waits", func() bool { return c.metric("tandem_waiting_requests") == 0 })
	_ = first.Close()
	c.checkIdle(2)
	if n := len(requests(c.prefill, "/v1/chat/completions")); n != 1 {
		t.Errorf("prefill was asked %d times", n)
	}
}

func TestLate_TheWaitIsBounded(t *testing.T) {
	t.Parallel()
	c, first := heldPrefill(t, func(cfg *config) { cfg.pd.queue.MaxWait = 2 * time.Second })
	defer func() { _ = first.Close() }()
	start := time.Now()
	if got := c.post("/v1/chat/completions", promptOf(1, "")); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("after %v: %d %s", time.Since(start), got.status, got.body)
	}
	if n := c.metric("tandem_waiting_requests"); n != 0 {
		t.Errorf("%v wait", n)
	}
}

func TestLate_WhenNoServerIsLeftWaitingEnds(t *testing.T) {
	c, first := heldPrefill(t, nil)
	defer func() { _ = first.Close() }()
	answers := make(chan answer, 40)
	for range 40 {
		go func() { answers <- c.post("/v1/chat/completions", promptOf(1, "")) }()
	}
	eventually(t, "they wait", func() bool { return c.metric("tandem_waiting_requests") == 40 })
	_ = c.decode[0].Close()
	for range 40 {
		if got := <-answers; got.status != 503 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}

// Decode has room for two of the prompts and their answers. Without the gate all would
// be prefilled, and wait in decode for their KV.
func TestLate_NothingIsPrefilledThatDecodeHasNoRoomFor(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) {
			cfg.TimeScale = 0.2
			if cfg.Role == engine.RoleDecode {
				cfg.Blocks, cfg.MaxModelLen = 130, 2000 // 2,080 tokens
			}
		},
		config: func(cfg *config) {
			cfg.pd.binding = pd.Late
			cfg.pools.ProbeInterval = 500 * time.Millisecond // what decode has is forgotten after three without an answer
		}})
	eventually(t, "the KV of decode is known", func() bool {
		return slices.ContainsFunc(c.node.fleet.Servers(), func(s *pools.Server) bool { return s.FreshLoad(time.Now()).KVTokens.Value == 2080 })
	})
	answers := make(chan answer, 12)
	for i := range 12 {
		go func() {
			answers <- c.post("/v1/chat/completions", strings.Replace(chatBodyOf(100, `,"ignore_eos":true`), "Two riders", fmt.Sprintf("Story %d: two riders", i), 1))
		}()
	}
	most := 0
	for served := 0; served < 12; {
		select {
		case got := <-answers:
			served++
			if got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		default:
			most = max(most, c.decode[0].State().Waiting)
			time.Sleep(time.Millisecond)
		}
	}
	if most > 4 { // a KV on its way counts as waiting, and what decode says of itself is a scrape old
		t.Errorf("%d waited in decode for room", most)
	}
}
