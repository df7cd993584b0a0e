package serving

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// apis are the paths that are disaggregated, with a request of each.
var apis = []struct{ name, path, body string }{
	{"chat", "/v1/chat/completions", chatBody("")},
	{"completions", "/v1/completions", `{"model":"test-model","max_tokens":24,"prompt":"` + longPrompt + `"}`},
	{"completions by token ids", "/v1/completions", `{"model":"test-model","max_tokens":24,"prompt":[` + strings.Repeat("5,6,7,", 100) + `8]}`},
	{"responses", "/v1/responses", `{"model":"test-model","max_output_tokens":24,"input":"` + longPrompt + `"}`},
	{"messages", "/v1/messages", `{"model":"test-model","max_tokens":24,"messages":[{"role":"user","content":"` + longPrompt + `"}]}`},
}

func streamed(body string) string { return strings.TrimSuffix(body, "}") + `,"stream":true}` }

// clientTrace is one that the client records; without a collector of ours engines get it as it came.
const clientTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestServe_PrefillsOnOneServerAndDecodesOnAnother(t *testing.T) {
	t.Parallel()
	for _, api := range apis {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%v", api.name, stream), func(t *testing.T) {
				c := newCluster(t, shape{prefill: 2, decode: 2})
				body := api.body
				if stream {
					body = streamed(body)
				}
				got := c.post(api.path, body, "X-Request-Id", "mine-1", "Traceparent", clientTrace)
				want := reference(t, api.path, body)
				if got.status != 200 || got.err != nil || got.text() == "" || got.text() != want.text() {
					t.Fatalf("status %d, %v: %q\nan engine by itself: %q", got.status, got.err, got.text(), want.text())
				}
				if stream && got.events[len(got.events)-1] != want.events[len(want.events)-1] && api.name != "responses" && api.name != "messages" {
					t.Errorf("ends with %s", got.events[len(got.events)-1])
				}
				p, d := got.header.Get("X-Tandem-Prefill"), got.header.Get("X-Tandem-Decode")
				if p == "" || d == "" || p == d {
					t.Errorf("pair %q, %q", p, d)
				}
				if got.header.Get("X-Request-Id") != "mine-1" {
					t.Errorf("x-request-id %q", got.header.Get("X-Request-Id"))
				}
				if strings.Contains(got.body, "kv_transfer_params") {
					t.Error("the hand-off reached the client")
				}
				checkLegs(t, c, api.path)
			})
		}
	}
}

// checkLegs checks what the engines saw: one prefill, one decode that pulled its
// KV, one id and one trace on both.
func checkLegs(t *testing.T, c *cluster, path string) {
	t.Helper()
	if n := sum(c.prefill, func(s engine.State) int { return s.PrefillsDone }); n != 1 {
		t.Errorf("%d prefills", n)
	}
	if n := sum(c.decode, func(s engine.State) int { return s.DecodesDone }); n != 1 {
		t.Errorf("%d decodes", n)
	}
	eventually(t, "the hand-off is pulled", func() bool {
		return sum(c.prefill, func(s engine.State) int { return s.HandoffsPulled }) == 1
	})
	if n := sum(c.prefill, func(s engine.State) int { return s.HandoffsOpen }); n != 0 {
		t.Errorf("%d hand-offs still open", n)
	}
	if n := sum(c.decode, func(s engine.State) int { return s.Recomputed }); n != 0 {
		t.Errorf("decode computed the prompt itself %d times", n)
	}
	p, d := requests(c.prefill, path), requests(c.decode, path)
	if len(p) != 1 || len(d) != 1 {
		t.Fatalf("%d prefill and %d decode requests", len(p), len(d))
	}
	if p[0].RequestID == "" || p[0].RequestID != d[0].RequestID || strings.Contains(p[0].RequestID, "mine") {
		t.Errorf("engines saw the ids %q and %q", p[0].RequestID, d[0].RequestID)
	}
	if p[0].Traceparent != clientTrace || d[0].Traceparent != clientTrace {
		t.Errorf("engines saw the traces %q and %q", p[0].Traceparent, d[0].Traceparent)
	}
}

func TestServe_UsageIsPrefillsCacheAndDecodesTokens(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	usage := func(a answer) gjson.Result {
		if len(a.events) == 0 {
			return gjson.Get(a.body, "usage")
		}
		return gjson.Get(a.events[len(a.events)-2], "usage")
	}
	body := chatBody(`,"stream":true,"stream_options":{"include_usage":true}`)
	cold := usage(c.post("/v1/chat/completions", body))
	warm := usage(c.post("/v1/chat/completions", body))
	whole := usage(c.post("/v1/chat/completions", chatBody("")))
	prompt := cold.Get("prompt_tokens").Int()
	if strings.Contains(cold.Raw, "cached_tokens") {
		t.Errorf("cold: %s", cold.Raw) // vLLM leaves out a zero; decode's own number would be the whole prompt
	}
	for name, u := range map[string]gjson.Result{"warm": warm, "not streamed": whole} {
		if n := u.Get("prompt_tokens_details.cached_tokens").Int(); n < prompt-32 || n > prompt {
			t.Errorf("%s: %s", name, u.Raw)
		}
		if u.Get("completion_tokens").Int() != 24 {
			t.Errorf("%s: %s", name, u.Raw)
		}
	}
	eventually(t, "all are accounted for", func() bool { return c.metric("tandem_requests_total", `outcome="ok"`) == 3 })
	if got := c.metric("tandem_output_tokens_total"); got != 72 {
		t.Errorf("counted %v output tokens", got)
	}
}

func TestServe_AbsentCachedTokensStayAbsent(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.CachedTokensInUsage = false }})
	got := c.post("/v1/chat/completions", chatBody(""))
	if strings.Contains(got.body, "cached_tokens") {
		t.Errorf("usage %s", gjson.Get(got.body, "usage").Raw)
	}
}

func TestServe_UsageThatTheClientDidNotAskForIsHidden(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	got := c.post("/v1/chat/completions", chatBody(`,"stream":true`))
	want := reference(t, "/v1/chat/completions", chatBody(`,"stream":true`))
	if len(got.events) != len(want.events) || strings.Contains(got.body, `"usage":{`) {
		t.Errorf("%d events, an engine by itself sends %d", len(got.events), len(want.events))
	}
	eventually(t, "it is accounted for", func() bool { return c.metric("tandem_requests_total", `outcome="ok"`) == 1 })
	if got := c.metric("tandem_output_tokens_total"); got != 24 {
		t.Errorf("counted %v output tokens", got)
	}
}

func TestServe_SeveralSamplesOrPromptsNeverShareAHandoff(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for name, r := range map[string]struct{ path, body string }{
		"n":           {"/v1/chat/completions", chatBody(`,"n":2`)},
		"n streamed":  {"/v1/chat/completions", chatBody(`,"n":2,"stream":true`)},
		"best_of":     {"/v1/completions", `{"model":"test-model","max_tokens":4,"best_of":2,"prompt":"` + longPrompt + `"}`},
		"prompt list": {"/v1/completions", `{"model":"test-model","max_tokens":4,"prompt":["a long one","and another"]}`},
		"id lists":    {"/v1/completions", `{"model":"test-model","max_tokens":4,"prompt":[[1,2,3],[4,5,6]]}`},
	} {
		got := c.post(r.path, r.body)
		if got.status != 200 || got.header.Get("X-Tandem-Prefill") != "" {
			t.Errorf("%s: status %d, prefill on %q: %.200s", name, got.status, got.header.Get("X-Tandem-Prefill"), got.body)
		}
	}
	if n := len(requests(c.prefill, "/v1/completions")) + len(requests(c.prefill, "/v1/chat/completions")); n != 0 {
		t.Errorf("%d prefill legs", n)
	}
	if got := c.metric("tandem_aggregated_requests_total", `reason="aggregated"`); got != 5 {
		t.Errorf("counted %v aggregated requests", got)
	}
}

func TestServe_BodiesStayBytes(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	messages := `[{"role":"user","content":"caf\u00e9 \/ <b>&amp;</b> ` + longPrompt + `","z":1,"a":{"y":2,"b":3}}]`
	body := `{ "messages" : ` + messages + `, "seed":9007199254740993, "x_unknown":[1.0e2,-0], "model":"test-model","max_tokens":2}`
	if got := c.post("/v1/chat/completions", body); got.status != 200 {
		t.Fatalf("status %d: %s", got.status, got.body)
	}
	for _, leg := range append(requests(c.prefill, "/v1/chat/completions"), requests(c.decode, "/v1/chat/completions")...) {
		for _, want := range []string{messages, `"seed":9007199254740993`, `"x_unknown":[1.0e2,-0]`} {
			if !strings.Contains(leg.Body, want) {
				t.Errorf("an engine did not get %.60s but %.300s", want, leg.Body)
			}
		}
	}
}

func TestServe_PassesOnWhatOneServerAnswers(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	const (
		rerank = `{"model":"test-model","query":"a river","documents":["a stream","a bicycle","a river"],"top_n":2}`
		score  = `{"model":"test-model","queries":"a river","documents":["a stream","a bicycle"]}`
		input  = `{"model":"test-model","input":["hello","there"]}`
		texts  = `{"model":"test-model","texts":["hello","there"],"input_type":"search_query","embedding_types":["float"]}`
	)
	for _, x := range []struct{ path, body, says string }{
		{"/v1/embeddings", input, "data.#.embedding"}, {"/v2/embed", texts, "embeddings.float"},
		{"/tokenize", `{"model":"test-model","prompt":"hello"}`, "tokens"},
		{"/detokenize", `{"model":"test-model","tokens":[1,2,3]}`, "prompt"},
		{"/rerank", rerank, "results.#.relevance_score"}, {"/v1/rerank", rerank, "results.#.index"}, {"/v2/rerank", rerank, "results.#.index"},
		{"/score", score, "data.#.score"}, {"/v1/score", score, "data.#.score"},
		{"/classify", input, "data.#.probs"},
		{"/pooling", input, "data.#.data"},
	} {
		got, want := c.post(x.path, x.body), reference(t, x.path, x.body)
		said := gjson.Get(got.body, x.says).Raw
		if got.status != 200 || want.status != 200 || len(said) < 5 || said != gjson.Get(want.body, x.says).Raw {
			t.Errorf("%s: %d %.200s\nan engine by itself: %d %.200s", x.path, got.status, got.body, want.status, want.body)
		}
	}
}

// vLLM answers encoding_format bytes with the vectors' numbers, and says in a header what they are.
func TestServe_PassesOnVectorsInBytes(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	counted := 0.0
	for _, path := range []string{"/v1/embeddings", "/pooling"} {
		for _, format := range []string{"bytes", "bytes_only"} {
			body := `{"model":"test-model","input":["hello","there"],"encoding_format":"` + format + `"}`
			got, want := c.post(path, body), reference(t, path, body)
			if got.status != 200 || len(want.body) < 8 || got.body != want.body || got.header.Get("Content-Type") != "application/octet-stream" {
				t.Errorf("%s, %s: %d %s %.200q\nan engine by itself: %d %.200q", path, format, got.status, got.header.Get("Content-Type"), got.body, want.status, want.body)
			}
			said, says := gjson.Parse(got.header.Get("Metadata")), gjson.Parse(want.header.Get("Metadata"))
			for _, part := range []string{"data", "usage"} {
				if said.Get(part).Raw != says.Get(part).Raw || format == "bytes" && said.Get(part).Raw == "" {
					t.Errorf("%s, %s: the metadata is %s, an engine's by itself %s", path, format, said, says)
				}
			}
			counted += says.Get("usage.prompt_tokens").Float()
		}
	}
	if got := c.metric("tandem_prompt_tokens_total"); got != counted || counted == 0 {
		t.Errorf("counted %v tokens of prompts, not %v", got, counted)
	}
}

// What no engine here has is its answer: 404 in OpenAI's shape.
func TestServe_PoolingWhereNoEngineHasItIs404(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.Embeddings = false }})
	got := c.post("/v1/rerank", `{"model":"test-model","query":"a river","documents":["a stream"]}`)
	if got.status != 404 || gjson.Get(got.body, "error.message").String() == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// SGLang's /classify would read files by these names (managers/io_struct.py, EmbeddingReqInput).
func TestServe_ClassifyNamesNoFiles(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	c.post("/classify", `{"model":"test-model","input":"hello","image_data":"/etc/passwd","audio_data":"/a","video_data":["/v"]}`)
	for _, leg := range requests(c.decode, "/classify") {
		if strings.Contains(leg.Body, "_data") {
			t.Errorf("an engine got %s", leg.Body)
		}
	}
	if len(requests(c.decode, "/classify")) == 0 {
		t.Error("no engine got it")
	}
}

func TestServe_ModelsAreTheUnionWithoutPaths(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	resp, err := c.client.Get(c.base + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	got := readResponse(resp)
	if gjson.Get(got.body, "data.#").Int() != 1 || gjson.Get(got.body, "data.0.id").String() != testModel ||
		gjson.Get(got.body, "data.0.max_model_len").Int() == 0 || strings.Contains(got.body, "root") {
		t.Errorf("%s", got.body)
	}
	if resp, err = c.client.Get(c.base + "/v1/models/nope"); err != nil {
		t.Fatal(err)
	}
	if got := readResponse(resp); got.status != 404 || gjson.Get(got.body, "error.code").String() != "model_not_found" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func TestServe_ToolsSchemasAndLogprobsPass(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for name, extra := range map[string]string{
		"forced tool": `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}],"tool_choice":{"type":"function","function":{"name":"f"}}`,
		"json schema": `,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}}}`,
		"logprobs":    `,"logprobs":true,"top_logprobs":2`,
	} {
		got, want := c.post("/v1/chat/completions", chatBody(extra)), reference(t, "/v1/chat/completions", chatBody(extra))
		for _, path := range []string{"choices.0.message.content", "choices.0.message.tool_calls.0.function", "choices.0.logprobs", "choices.0.finish_reason"} {
			if g, w := gjson.Get(got.body, path).Raw, gjson.Get(want.body, path).Raw; got.status != 200 || g != w {
				t.Errorf("%s: status %d, %s is %.200s\nan engine by itself: %.200s", name, got.status, path, g, w)
			}
		}
	}
}
