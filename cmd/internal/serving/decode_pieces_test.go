package serving

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// newDecodingCluster has a decode server so many times as slow as the prior that computes prompts by
// itself, in pieces of which each fits into 100 ms of the prior's engine.
func newDecodingCluster(t *testing.T, scale float64, change func(*engine.Config), configure func(*config)) *cluster {
	t.Helper()
	slow := func(cfg *engine.Config) { cfg.TimeScale = scale; change(cfg) }
	return newCuttingCluster(t, 0, 1, slow, func(cfg *config) {
		believe(cfg, scale/computing)
		cfg.pd.DecodePieces = time.Duration(scale * float64(100*time.Millisecond))
		configure(cfg)
	})
}

// A prompt that decode computes by itself in pieces is answered as one engine answers it, in all
// APIs, none of its tokens is computed twice, and the client is told of no cache that was filled for
// it.
func TestDecodePieces_AnswersAreThoseOfOneEngine(t *testing.T) {
	t.Parallel()
	c := newDecodingCluster(t, 0.5, func(*engine.Config) {}, func(*config) {})
	asked, prompts := c.answersLongPromptsAsOneEngine()
	pieces := c.metric("tandem_prefill_pieces_total", `outcome="on_decode"`)
	d := c.decode[0]
	computed := engineMetric(t, d, "vllm:prefix_cache_queries_total") - engineMetric(t, d, "vllm:prefix_cache_hits_total")
	t.Logf("%d prompts of some %d tokens in %v pieces, %v tokens computed", asked, prompts, pieces, computed)
	if pieces < float64(asked) {
		t.Errorf("%v pieces of %d prompts", pieces, asked)
	}
	if all := float64(asked * prompts); computed > 1.05*all {
		t.Errorf("of %v tokens %v were computed", all, computed)
	}
	if n := c.metric("tandem_prefill_pieces_total", `outcome="lost"`) + c.metric("tandem_retries_total"); n != 0 {
		t.Errorf("%v legs went wrong", n)
	}
	c.checkIdle(0)
}

// A stream goes on between the pieces of a prompt that its server computes: none of the server's steps, for which the
// streams in its batch stand still, is as long as the prompt takes. What the steps compute says how long they are, and
// no clock that a busy machine moves.
func TestDecodePieces_StreamsGoOnBetween(t *testing.T) {
	t.Parallel()
	longestStep := func(configure func(*config)) time.Duration {
		c := newDecodingCluster(t, 0.5, func(*engine.Config) {}, configure)
		next := c.openStream(t.Context(), "/v1/completions", askFor("/v1/completions", 20, `,"max_tokens":2000,"ignore_eos":true,"stream":true`))
		next()
		if got := c.post("/v1/completions", longAsk("/v1/completions", 1, `,"max_tokens":2`)); got.status != 200 {
			t.Fatal(got.body)
		}
		s := c.decode[0].State()
		if s.Running != 1 {
			t.Fatalf("%d sequences run behind the prompt, not the stream alone", s.Running)
		}
		return s.LongestStep
	}
	whole := longestStep(func(cfg *config) { cfg.pd.DecodePieces = 0 })
	cut := longestStep(func(cfg *config) { cfg.pd.DecodePieces /= 2 })
	t.Logf("the longest step takes %v in pieces, %v whole", cut, whole)
	if cut > whole/2 {
		t.Errorf("the longest step takes %v in pieces, %v whole", cut, whole)
	}
}

// Where the cache keeps no piece until the next one comes, prompts are computed whole for a while.
func TestDecodePieces_AreGivenUpWhereTheCacheKeepsNone(t *testing.T) {
	t.Parallel()
	c := newDecodingCluster(t, 0.5, func(cfg *engine.Config) { cfg.NoPrefixCaching = true }, func(*config) {})
	for i := range 3 {
		if got := c.post("/v1/completions", longAsk("/v1/completions", i, `,"max_tokens":2`)); got.status != 200 {
			t.Fatal(got.body)
		}
	}
	if lost, sent := c.metric("tandem_prefill_pieces_total", `outcome="lost"`), c.metric("tandem_prefill_pieces_total", `outcome="on_decode"`); lost != 1 || sent != 2 {
		t.Errorf("%v pieces were sent, %v lost", sent, lost)
	}
}

// No piece of a prompt is sent whose token ids are not certain, or where pieces are off.
func TestDecodePieces_NoneOfUncertainPrompts(t *testing.T) {
	t.Parallel()
	for name, configure := range map[string]func(*config){
		"off":      func(cfg *config) { cfg.pd.DecodePieces = 0 },
		"by bytes": func(cfg *config) { cfg.kv.modes = []string{"approximate"} },
	} {
		c := newDecodingCluster(t, 0.5, func(*engine.Config) {}, configure)
		if got := c.post("/v1/completions", fmt.Sprintf(`{"model":"test-model","prompt":%q,"max_tokens":2}`, strings.Repeat(longPrompt+" ", 12))); got.status != 200 {
			t.Fatal(got.body)
		}
		if n := c.metric("tandem_prefill_pieces_total"); n != 0 {
			t.Errorf("%s: %v pieces were sent", name, n)
		}
	}
}
