package serving

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
	"github.com/tandem-gateway/tandem/loadtest/redisserver"
	"github.com/tandem-gateway/tandem/pd"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pools/curve"
)

// inPieces has pairs of which prefill computes prompts in pieces of the least size, 2,048 tokens.
func inPieces(cfg *config) { cfg.pd.binding, cfg.cost.PairsFirst, cfg.pd.Pieces = pd.Late, true, 1 }

// newCuttingCluster has engines that take pieces.
func newCuttingCluster(t *testing.T, prefill, decode int, change func(*engine.Config), configure func(*config)) *cluster {
	t.Helper()
	start := func(role string, n int) (engines []*engine.Engine) {
		for range n {
			engines = append(engines, startTestEngine(t, role, func(cfg *engine.Config) {
				publishing(cfg)
				takesFirst(cfg)
				change(cfg)
			}))
		}
		return engines
	}
	return newClusterOf(t, start(engine.RolePrefill, prefill), start(engine.RoleDecode, decode), "engine", configure)
}

// engineMetric sums the samples of a metric of an engine.
func engineMetric(t *testing.T, e *engine.Engine, name string) (n float64) {
	t.Helper()
	resp, err := newTestClient(t).Get(e.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(readResponse(resp).body) {
		if strings.HasPrefix(line, name+"{") {
			value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
			if err != nil {
				t.Fatal(err)
			}
			n += value
		}
	}
	return n
}

// longAsk is a request whose prompt has some thousands of tokens, of which no two have a beginning
// in common.
func longAsk(path string, n int, extra string) string { return askOf(path, n, 12, extra) }

// askOf is longAsk of a prompt that says longPrompt so many times.
func askOf(path string, n, times int, extra string) string {
	said := fmt.Sprintf("Request %d. ", n) + strings.Repeat(longPrompt+" ", times)
	switch path {
	case "/v1/completions":
		return fmt.Sprintf(`{"model":"test-model","prompt":%q%s}`, said, extra)
	case "/v1/responses":
		return fmt.Sprintf(`{"model":"test-model","input":%q%s}`, said, strings.Replace(extra, "max_tokens", "max_output_tokens", 1))
	}
	return fmt.Sprintf(`{"model":"test-model","messages":[{"role":"user","content":%q}]%s}`, said, extra)
}

// answersLongPromptsAsOneEngine asks for long prompts in all APIs, streamed and not. Each answer must be that
// of one engine, and no client be told of a cache. It returns how many were asked, and the tokens of each.
func (c *cluster) answersLongPromptsAsOneEngine() (asked, prompts int) {
	t := c.t
	t.Helper()
	truth := startTestEngine(t, engine.RoleBoth, takesFirst)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"} {
		for i, extra := range []string{`,"max_tokens":9`, `,"max_tokens":9,"stream":true`} {
			body := longAsk(path, asked, extra)
			asked++
			got, want := c.post(path, body), askEngine(t, truth, path, body)
			if path == "/v1/responses" || path == "/v1/messages" { // whose events name the answer everywhere
				if got.status != 200 || got.text() != want.text() {
					t.Errorf("%s: %d %s", path, got.status, got.body)
				}
			} else {
				sameAnswer(t, path, got, want)
			}
			if i == 0 {
				u := gjson.Get(got.body, "usage")
				prompts = int(u.Get("prompt_tokens").Int() + u.Get("input_tokens").Int())
				if cached := u.Get("prompt_tokens_details.cached_tokens").Int() + u.Get("input_tokens_details.cached_tokens").Int() + u.Get("cache_read_input_tokens").Int(); cached > 64 {
					t.Errorf("%s: the client is told that %d of %d tokens were cached", path, cached, prompts)
				}
			}
		}
	}
	return asked, prompts
}

// A prompt that is too short for pieces is cut up to three times where its transfer takes long, as is believed here
// of engines that are faster: at least the first ones, before the gateway has learned that. The answers are the same.
func TestPieces_OfPromptsCutForTheTransfer(t *testing.T) {
	t.Parallel()
	c := newCuttingCluster(t, 1, 1, func(*engine.Config) {}, func(cfg *config) {
		inPieces(cfg)
		cfg.pd.Pieces, cfg.cost.KVBytesPerToken = cost.Pieces(time.Hour), 256<<10
		believe(cfg, 1)
		cfg.pools.Prefill = curve.Curve{0.01, 0.1, 0} // half a second for five thousand tokens, and a tenth of one for their transfer
	})
	asked, _ := c.answersLongPromptsAsOneEngine()
	pulled, kept := c.metric("tandem_prefill_pieces_total", `outcome="pulled"`), c.metric("tandem_prefill_pieces_total", `outcome="kept"`)
	if pulled < 1 || pulled > 3*float64(asked) || kept != pulled {
		t.Errorf("%v pieces were pulled, %v kept, of %d prompts", pulled, kept, asked)
	}
	eventually(t, "no hand-off is left", func() bool { return c.prefill[0].State().HandoffsOpen == 0 })
	c.checkIdle(0)
}

// What is answered is what one engine answers, event for event and in all APIs; no token is
// computed or pulled twice, and the client is told of no cache that was filled for it.
func TestPieces_AnswersAreThoseOfOneEngine(t *testing.T) {
	t.Parallel()
	c := newCuttingCluster(t, 1, 1, func(*engine.Config) {}, inPieces)
	asked, prompts := c.answersLongPromptsAsOneEngine()
	pulled, kept := c.metric("tandem_prefill_pieces_total", `outcome="pulled"`), c.metric("tandem_prefill_pieces_total", `outcome="kept"`)
	t.Logf("%d prompts of some %d tokens: %v pieces were pulled, %v kept", asked, prompts, pulled, kept)
	if pulled < float64(3*asked) || kept != pulled {
		t.Errorf("%v pieces were pulled, %v kept", pulled, kept)
	}
	if n := c.metric("tandem_prefill_pieces_total", `outcome="lost"`) + c.metric("tandem_prefill_pieces_total", `outcome="not_pulled"`) +
		c.metric("tandem_silent_recomputes_total") + c.metric("tandem_retries_total") + c.metric("tandem_handoffs_stranded_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
	p, d := c.prefill[0], c.decode[0]
	computed := engineMetric(t, p, "vllm:prefix_cache_queries_total") - engineMetric(t, p, "vllm:prefix_cache_hits_total")
	moved := engineMetric(t, d, "vllm:external_prefix_cache_hits_total")
	all := float64(asked * prompts)
	t.Logf("%v tokens: %v computed, %v pulled", all, computed, moved)
	if computed > 1.05*all || moved > 1.05*all {
		t.Errorf("of %v tokens %v were computed and %v pulled", all, computed, moved)
	}
	eventually(t, "no hand-off is left", func() bool { return p.State().HandoffsOpen == 0 })
	c.checkIdle(0)
}

// Of a prompt that does not fit the context no piece is computed, and the client hears how long all of it is.
func TestPieces_NoneOfAPromptThatDoesNotFit(t *testing.T) {
	t.Parallel()
	short := func(cfg *engine.Config) { cfg.MaxModelLen = 3000 }
	truth := startTestEngine(t, engine.RoleBoth, func(cfg *engine.Config) {
		takesFirst(cfg)
		short(cfg)
	})
	for name, c := range map[string]*cluster{
		"a pair":       newCuttingCluster(t, 1, 1, short, inPieces),
		"decode alone": newDecodingCluster(t, 0.5, short, func(*config) {}),
	} {
		for i, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses"} {
			body := longAsk(path, i, "")
			if path == "/v1/messages" {
				body = longAsk(path, i, `,"max_tokens":9`)
			}
			got, want := c.post(path, body), askEngine(t, truth, path, body)
			said, whole := gjson.Get(got.body, "error.message").String(), gjson.Get(want.body, "error.message").String()
			if path == "/v1/messages" { // in Anthropic's words
				var longest, prompt int
				if _, err := fmt.Sscanf(whole, "This model's maximum context length is %d tokens. However, your request has %d input tokens.", &longest, &prompt); err != nil {
					t.Fatalf("%s: %v", whole, err)
				}
				whole = fmt.Sprintf("prompt is too long: %d tokens > %d maximum", prompt, longest)
			}
			if got.status != 400 || want.status != 400 || said != whole {
				t.Errorf("%s, %s: %d %s\none engine: %d %s", name, path, got.status, said, want.status, whole)
			}
		}
		for _, e := range slices.Concat(c.prefill, c.decode) {
			if n := engineMetric(t, e, "vllm:prefix_cache_queries_total"); n != 0 {
				t.Errorf("%s: an engine looked at %v tokens of prompts that do not fit", name, n)
			}
		}
	}
}

// A short request waits for a piece of a long one at most.
func TestPieces_AShortRequestGoesBetween(t *testing.T) {
	t.Parallel()
	slow := func(cfg *engine.Config) { cfg.TimeScale = 20 }
	c := newCuttingCluster(t, 1, 1, slow, inPieces)
	long := make(chan time.Time, 1)
	go func() {
		c.post("/v1/completions", longAsk("/v1/completions", 1, `,"max_tokens":2`))
		long <- time.Now()
	}()
	eventually(t, "the first piece is computed", func() bool { return c.prefill[0].State().PrefillsDone > 0 })
	if got := c.post("/v1/completions", askFor("/v1/completions", 60, `,"max_tokens":2`)); got.status != 200 {
		t.Fatal(got.body)
	}
	short := time.Now()
	if done := <-long; !short.Before(done) {
		t.Errorf("the short request was answered %v after the long one", short.Sub(done))
	}
}

// A client that leaves between two pieces leaves nothing behind, and no piece follows.
func TestPieces_EndWithTheClient(t *testing.T) {
	t.Parallel()
	slow := func(cfg *engine.Config) { cfg.TimeScale = 20 }
	c := newCuttingCluster(t, 1, 1, slow, inPieces)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/completions", strings.NewReader(longAsk("/v1/completions", 1, `,"max_tokens":2`)))
		if err == nil {
			resp, err := c.client.Do(req)
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	eventually(t, "two pieces are computed", func() bool { return c.prefill[0].State().PrefillsDone > 1 })
	leave()
	eventually(t, "the engines have nothing to do", func() bool {
		p, d := c.prefill[0].State(), c.decode[0].State()
		return p.Running+p.Waiting+d.Running+d.Waiting == 0
	})
	c.checkIdle(1)
	if n := len(requests(c.prefill, "/v1/completions")); n > 4 {
		t.Errorf("prefill was asked %d times", n)
	}
}

// Where the cache keeps no piece until the next one, pieces are given up, and all is answered.
func TestPieces_AreGivenUpWhereTheCacheKeepsNone(t *testing.T) {
	t.Parallel()
	c := newCuttingCluster(t, 1, 1, func(cfg *engine.Config) { cfg.NoPrefixCaching = true }, inPieces)
	for i := range 8 {
		if got := c.post("/v1/completions", longAsk("/v1/completions", i, `,"max_tokens":2`)); got.status != 200 {
			t.Fatal(got.body)
		}
	}
	before := len(requests(c.prefill, "/v1/completions"))
	if got := c.post("/v1/completions", longAsk("/v1/completions", 9, `,"max_tokens":2`)); got.status != 200 {
		t.Fatal(got.body)
	}
	if n := len(requests(c.prefill, "/v1/completions")) - before; n != 1 {
		t.Errorf("a prompt was prefilled by %d legs", n)
	}
}

// prefillLegs is how many legs of prefill reached an engine; probes are none.
func prefillLegs(e *engine.Engine) (n int) {
	for _, r := range requests([]*engine.Engine{e}, "/v1/completions") {
		if strings.Contains(r.Body, `"do_remote_decode":true`) {
			n++
		}
	}
	return n
}

// A server that drains between two pieces gets no other one: the request begins anew elsewhere.
func TestPieces_EndWithTheDrainOfTheirServer(t *testing.T) {
	t.Parallel()
	slow := func(cfg *engine.Config) { cfg.TimeScale = 60 } // a piece takes longer than the drain
	c := newCuttingCluster(t, 2, 1, slow, inPieces)
	long := make(chan answer, 1)
	go func() {
		long <- c.post("/v1/completions", fmt.Sprintf(`{"model":"test-model","prompt":%q,"max_tokens":2}`, strings.Repeat(longPrompt+" ", 4)))
	}()
	began := -1
	eventually(t, "the first piece is under way", func() bool {
		began = slices.IndexFunc(c.prefill, func(p *engine.Engine) bool { return p.State().Running == 1 })
		return began >= 0
	})
	c.raw(http.MethodPost, c.admin+"/drain/"+strings.TrimPrefix(c.prefill[began].URL(), "http://"))
	sent := prefillLegs(c.prefill[began])
	if got := <-long; got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if n := prefillLegs(c.prefill[began]); n != sent {
		t.Errorf("the server that drains got %d legs more", n-sent)
	}
	if n := prefillLegs(c.prefill[1-began]); n == 0 {
		t.Error("the other one got none")
	}
	if n := c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v retries were taken of the budget", n)
	}
}

// A replica that follows cuts as the one that decides does, and its requests keep their servers.
func TestPieces_OfAReplicaThatFollows(t *testing.T) {
	t.Parallel()
	r := redisserver.Start(t)
	configure := func(cfg *config) {
		inPieces(cfg)
		cfg.redis.addrs = []string{r.Addr()}
		cfg.decider.patience = 10 * time.Second // a busy machine is no death
	}
	a := newCuttingCluster(t, 2, 1, func(*engine.Config) {}, configure)
	eventually(t, "a decides", a.node.sharing.decider.follower.Leads)
	b := newClusterOf(t, a.prefill, a.decode, "engine", configure)
	eventually(t, "b follows", func() bool { return b.metric("tandem_leader_followed") == 1 })
	for i := range 4 {
		if got := b.post("/v1/completions", longAsk("/v1/completions", i, `,"max_tokens":2`)); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	kept, turns := b.metric("tandem_prefill_pieces_total", `outcome="kept"`), a.metric("tandem_leader_remote_requests_total")
	t.Logf("%v pieces were kept, %v turns given", kept, turns)
	// Nobody else waits, so that it may have bound them all by itself.
	if kept < 4*4 {
		t.Errorf("%v pieces were kept", kept)
	}
	if n := b.metric("tandem_prefill_pieces_total", `outcome="lost"`); n != 0 {
		t.Errorf("%v pieces were lost", n)
	}
}

// Siblings that come at once do not all compute their long beginning, though it is computed in
// four pieces, of half a second each, between which they have their turns. In quiet it is computed
// twice; where the machine delays what servers say of their pieces, thrice. Without a turn for those
// who follow all four servers compute it.
func TestPieces_SiblingsDoNotAllComputeTheirBeginning(t *testing.T) {
	for try := 1; ; try++ {
		c := newCuttingCluster(t, 4, 1, func(cfg *engine.Config) { cfg.TimeScale = 8 }, func(cfg *config) {
			inPieces(cfg)
			asksAreAnswered(cfg)
			cfg.pd.Pieces = cost.Pieces(500 * time.Millisecond)
			believe(cfg, 8/computing)
		})
		times := c.runSiblings(16)
		t.Logf("computed %.1f times, %v pieces were kept", times, c.metric("tandem_prefill_pieces_total", `outcome="kept"`))
		if times < 3.2 { // what siblings ask has not just so many tokens
			return
		}
		if try == 6 { // on a busy machine waiting may look longer than computing it elsewhere
			t.Fatal("six times")
		}
	}
}
