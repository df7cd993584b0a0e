package serving

import (
	"bufio"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// The prompt's side of a usage is prefill's, whole: decode finds all that was handed over
// cached. Keys and metrics count the prompt, on every API.
func TestUsage_PromptSideIsPrefills(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.31.0", "0.32.0"} {
		for path, api := range usageAPIs {
			t.Run(version+path, func(t *testing.T) {
				t.Parallel()
				newer := func(cfg *engine.Config) { cfg.Version = version }
				keys := func(*config) {}
				if version == "0.32.0" { // the older one would mix tenants' KV on /v1/messages
					keys = withKeys(t, "sk-a tenant=a prompt-tokens-per-minute=1000000")
				}
				c := newCluster(t, shape{prefill: 1, decode: 1, engine: newer, config: keys})
				alone := startTestEngine(t, engine.RoleBoth, newer)
				sum := 0.0
				for i, extra := range []string{"", `,"stream":true` + api.streamOptions, ""} {
					body := api.body + strings.Repeat("and the second one. ", 20*i) + api.rest + extra + "}"
					want, got := usageOf(askEngine(t, alone, path, body)), c.post(path, body, "Authorization", "Bearer sk-a")
					if got.status != 200 || got.header.Get("X-Tandem-Prefill") == "" {
						t.Fatalf("%d %s", got.status, got.body)
					}
					for _, field := range []string{"prompt_tokens", "prompt_tokens_details", "total_tokens", "completion_tokens",
						"input_tokens", "input_tokens_details", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"} {
						if g, w := usageOf(got).Get(field).Raw, want.Get(field).Raw; g != w {
							t.Errorf("request %d: %s is %s, of one engine %s", i, field, g, w)
						}
					}
					for _, part := range []string{"prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"} {
						sum += want.Get(part).Float()
					}
				}
				eventually(t, "prompts are counted", func() bool { return c.metric("tandem_prompt_tokens_total") == sum })
				if n := c.metric("tandem_tenant_tokens_total", `kind="prompt"`); version == "0.32.0" && n != sum {
					t.Errorf("the key was charged %v of %v tokens", n, sum)
				}
				if n := c.metric("tandem_silent_recomputes_total") + c.metric("tandem_prompt_mismatches_total"); n != 0 {
					t.Errorf("%v recomputes and mismatches", n)
				}
			})
		}
	}
}

// A stream whose usage never comes, since its client leaves or its engine dies, has what prefill says of its
// prompt: metrics and the live page count its length wherever they count what of it was cached.
func TestUsage_OfAStreamThatEndsEarlyCountsThePromptWithWhatWasCached(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{"", `,"stream_options":{"include_usage":true}`} {
		for name, end := range map[string]func(*cluster, string){
			"the client leaves": func(c *cluster, body string) {
				conn := c.dialRequest(body)
				defer func() { _ = conn.Close() }()
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					c.t.Fatal(err)
				}
				lines := bufio.NewScanner(resp.Body)
				for range 10 {
					lines.Scan()
				}
			},
			"the engine dies": func(c *cluster, body string) {
				c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5})
				c.post("/v1/chat/completions", body)
			},
		} {
			t.Run(name+usage, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.TimeScale = 1 }})
				c.post("/v1/chat/completions", chatBody("")) // for prefill's cache
				whole := usageOf(c.post("/v1/chat/completions", chatBody("")))
				prompt, cached := whole.Get("prompt_tokens").Num, whole.Get("prompt_tokens_details.cached_tokens").Num
				before := c.countedTokens()
				if want := (countedTokens{2 * prompt, cached, 2 * prompt}); before != want || cached == 0 {
					t.Fatalf("of two whole answers %+v are counted, want %+v", before, want)
				}
				end(c, chatBodyOf(2000, `,"stream":true,"ignore_eos":true`+usage))
				eventually(t, "it has ended", func() bool { return c.metric("tandem_in_flight_requests") == 0 })
				after := c.countedTokens()
				legs := 1 + c.metric("tandem_continuations_total", `outcome="continued"`) // each computes the prompt, and what came of the answer
				got, most := countedTokens{after.prompt - before.prompt, after.cached - before.cached, after.kv - before.kv}, legs*(prompt+16)
				if got.prompt < legs*prompt || got.prompt > most || got.kv != got.prompt || got.cached < legs*cached || got.cached > got.prompt {
					t.Errorf("of a stream that ended early, of %v legs, %+v are counted, of a whole answer %v and %v cached", legs, got, prompt, cached)
				}
				share := gjson.Get(c.raw(http.MethodGet, c.admin+"/ui/state").body, "history.lately.cached").Num
				if want := 2 * cached / (3 * prompt); math.Abs(share-want) > 0.001 {
					t.Errorf("the cached share of three prompts is %v, want %v", share, want)
				}
			})
		}
	}
}

// countedTokens are those of prompts that metrics count.
type countedTokens struct{ prompt, cached, kv float64 }

func (c *cluster) countedTokens() countedTokens {
	c.t.Helper()
	return countedTokens{c.metric("tandem_prompt_tokens_total"), c.metric("tandem_cached_prompt_tokens_total"), c.metric("tandem_kv_prompt_tokens_total")}
}

// usageAPIs are bodies, cut where the prompt ends.
var usageAPIs = map[string]struct{ body, rest, streamOptions string }{
	"/v1/chat/completions": {`{"model":"test-model","max_tokens":9,"messages":[{"role":"user","content":"` + longPrompt, `"}]`, `,"stream_options":{"include_usage":true}`},
	"/v1/completions":      {`{"model":"test-model","max_tokens":9,"prompt":"` + longPrompt, `"`, `,"stream_options":{"include_usage":true}`},
	"/v1/responses":        {`{"model":"test-model","max_output_tokens":9,"input":"` + longPrompt, `"`, ""},
	"/v1/messages":         {`{"model":"test-model","max_tokens":9,"messages":[{"role":"user","content":"` + longPrompt, `"}]`, ""},
}

// usageOf is the last usage in an answer.
func usageOf(a answer) (last gjson.Result) {
	for _, data := range append([]string{a.body}, a.events...) {
		for _, place := range []string{"usage", "response.usage"} {
			if u := gjson.Get(data, place); u.IsObject() {
				last = u
			}
		}
	}
	return last
}
