package serving

import (
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
