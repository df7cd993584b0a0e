package serving

import (
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// An engine on a busy CPU answers no probe in time while it works. In front of the only pair
// that must not cut the request under way, and the next one waits and is served.
func TestUnresponsive_TheOnlyPairThatAnswersNoProbe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1,
		engine: func(cfg *engine.Config) { cfg.TimeScale = 1 },
		config: func(cfg *config) {
			cfg.pools.ProbeInterval, cfg.pools.ProbeTimeout = 50*time.Millisecond, 200*time.Millisecond
			cfg.pd.UnresponsiveWait = time.Minute
		}})
	// It works, a token in a second or more, and answers nothing else.
	slow := engine.Fault{Kind: engine.FaultSlow, Factor: 150}
	silent := engine.Fault{Kind: engine.FaultHangBeforeHeaders, Path: "/health"}
	for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		e.SetFault(silent)
	}
	c.decode[0].SetFault(slow)
	ask := func(extra string) <-chan answer {
		got := make(chan answer, 1)
		go func() { got <- c.post("/v1/chat/completions", chatBodyOf(3, extra)) }()
		return got
	}
	underWay := []<-chan answer{ask(""), ask(`,"stream":true`)}
	eventually(t, "both are unresponsive", func() bool { return c.metric("tandem_server_unresponsive") == 2 })
	next := []<-chan answer{ask(""), ask(`,"stream":true`)}
	eventually(t, "requests wait", func() bool { return c.metric("tandem_unresponsive_waits_total", `role="decode"`) > 0 })
	if got := c.get("/readyz"); got.status != 200 {
		t.Errorf("unresponsive: %d %s", got.status, got.body)
	}
	eventually(t, "what is under way ends, though no server answers probes", func() bool {
		return len(underWay[0]) == 1 && len(underWay[1]) == 1
	})
	for _, e := range []*engine.Engine{c.prefill[0], c.decode[0]} {
		e.ClearFaults()
	}
	for _, each := range append(underWay, next...) {
		if got := <-each; got.status != 200 || got.err != nil {
			t.Errorf("%d, %v: %.300s", got.status, got.err, got.body)
		}
	}
	if down := c.metric("tandem_role_missing"); down != 0 {
		t.Errorf("%v roles are missing", down)
	}
}

// No request waits for longer than the bound, or beyond the request's deadline.
func TestUnresponsive_WaitsAreBounded(t *testing.T) {
	t.Parallel()
	keys := withKeys(t, "sk-key tenant=t may-set=[deadline]")
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		keys(cfg)
		cfg.pools.ProbeInterval, cfg.pools.ProbeTimeout = 50*time.Millisecond, 200*time.Millisecond
		cfg.pd.UnresponsiveWait = 2 * time.Second
	}})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Path: "/health"})
	eventually(t, "it is unresponsive", func() bool { return c.metric("tandem_server_unresponsive") == 1 })
	for _, each := range []struct {
		headers []string
		code    string
		least   time.Duration
	}{
		{nil, "no_server", 2 * time.Second},
		{[]string{"X-Tandem-Deadline-Ms", "500"}, "deadline_unreachable", 500 * time.Millisecond},
	} {
		start := time.Now()
		got := c.post("/v1/chat/completions", chatBody(""), append(each.headers, "Authorization", "Bearer sk-key")...)
		took := time.Since(start)
		if got.status != 503 || got.header.Get("Retry-After") == "" || gjson.Get(got.body, "error.code").String() != each.code || took < each.least*9/10 || took > each.least+10*time.Second {
			t.Errorf("%d after %v: %s", got.status, took, got.body)
		}
	}
}

// While a request waits for an unresponsive server the server turns out to be down: it waits no
// longer, and counts once in the time in the queue.
func TestUnresponsive_IsNotWaitedOutWhereAServerIsDownForCertain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) {
		cfg.pools.ProbeInterval, cfg.pools.ProbeTimeout = 50*time.Millisecond, 200*time.Millisecond
		cfg.pd.UnresponsiveWait = 10 * time.Minute
	}})
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultHangBeforeHeaders, Path: "/health"})
	eventually(t, "it is unresponsive", func() bool { return c.metric("tandem_server_unresponsive") == 1 })
	before := c.metric("tandem_wait_seconds_count")
	got := make(chan answer, 1)
	go func() { got <- c.post("/v1/chat/completions", chatBody("")) }()
	eventually(t, "a request waits", func() bool { return c.metric("tandem_unresponsive_waits_total") == 1 })
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultRefuse})
	eventually(t, "the request ends", func() bool { return len(got) == 1 })
	if got := <-got; got.status != 503 || gjson.Get(got.body, "error.code").String() != "no_server" {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := c.metric("tandem_wait_seconds_count") - before; n != 1 {
		t.Errorf("one request counts %v times in the queue", n)
	}
}
