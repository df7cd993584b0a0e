package serving

import (
	"bufio"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

// controlFields steer engines: what no client may pass to one.
var controlFields = []string{
	"kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key",
	"data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank", "disaggregated_params", "disagg_prefill_resp",
	"remote_decoder", "remote_prefiller", "remote_kv_source", "cache_hit_threshold", "request_id", "rid", "cache_salt", "priority",
	"lora_path", "lora_request", "custom_logit_processor", "session_id", "session_params", "conversation_params", "custom_labels",
	"extra_key", "ngram_corpus_id", "injected_chat_template_kwargs", "kv_cache_report_mode", "namespace_info", "stream_interval",
}

// controlBodies are tricks to pass a control field; each holds the word "evil", and some
// one that is to stay.
func controlBodies() map[string]string {
	bodies := map[string]string{
		"escaped key":      `"kv\u005ftransfer_params":{"remote_host":"evil"}`,
		"escaped in full":  `"\u0072\u0069\u0064":"evil"`,
		"in extra_body":    `"extra_body":{"kv_transfer_params":{"remote_host":"evil"},"keep":1}`,
		"in vllm_xargs":    `"vllm_xargs":{"kv_transfer_params":"evil","keep":1}`,
		"deep":             `"sampling_params":{"max_new_tokens":2,"extra_args":{"KV_TRANSFER_PARAMS":{"remote_host":"evil"},"keep":1}}`,
		"huge number":      `"bootstrap_room":99999999999999999999999999,"rid":"evil"`,
		"containers twice": `"extra_body":{"extra_body":{"bootstrap_host":"evil"},"keep":1}`,
		"a list":           `"extra_body":[{"bootstrap_host":"evil"},[{"rid":"evil","keep":1}],7]`,
		"other container":  `"EXTRA_BODY":{"rid":"evil"}`,
		"escaped both":     `"extra\u005fbody":{"r\u0069d":"evil"}`,
	}
	for _, field := range controlFields {
		bodies[field] = `"` + field + `":"evil"`
		bodies[field+" as an object"] = `"` + field + `":{"evil":["evil"]}`
		bodies[field+" in capitals"] = `"` + strings.ToUpper(field) + `":"evil"`
		bodies[field+" in a container"] = `"extra_body":{"keep":1,"` + field + `":"evil"}`
	}
	return bodies
}

// controlAPIs are requests that take more fields.
var controlAPIs = map[string]string{
	chatPath:          `{"model":"test-model","max_tokens":2,"messages":[{"role":"user","content":"hi"}],@}`,
	"/v1/completions": `{"model":"test-model","max_tokens":2,"prompt":"hi",@}`,
	"/v1/responses":   `{"model":"test-model","max_output_tokens":2,"input":"hi",@}`,
	"/v1/messages":    `{"model":"test-model","max_tokens":2,"messages":[{"role":"user","content":"hi"}],@}`,
	"/generate":       `{"text":"hi",@}`,
	"/v1/embeddings":  `{"model":"test-model","input":"hi",@}`,
	"/tokenize":       `{"model":"test-model","prompt":"hi",@}`,
}

// clustersOf are the clusters that pass requests of each API on as they are: SGLang's pairs take no messages and no
// responses.
func clustersOf(t *testing.T) (of func(path string) (c *cluster, engines []*engine.Engine)) {
	pairs, alone := newNative(t), startTestEngine(t, engine.RoleBoth, sglangEngine)
	whole := newCluster(t, shape{config: func(cfg *config) {
		cfg.servers[2].add(serverEntry{URL: alone.URL(), Connector: "aggregated"})
	}})
	eventually(t, "the server is up", func() bool { return whole.metric("tandem_server_up") == 1 })
	return func(path string) (*cluster, []*engine.Engine) {
		if path == "/v1/responses" || path == messagesPath {
			return whole, []*engine.Engine{alone}
		}
		return pairs, slices.Concat(pairs.prefill, pairs.decode)
	}
}

func TestEdge_ControlFieldsNeverReachAnEngine(t *testing.T) {
	of := clustersOf(t)
	// What the gateway itself says to engines: the client's must not come instead.
	own := []string{"bootstrap_host", "bootstrap_port", "bootstrap_room", "request_id", "rid"}
	for path, body := range controlAPIs {
		c, engines := of(path)
		for name, field := range controlBodies() {
			got := c.post(path, strings.Replace(body, "@", field, 1))
			if got.status != 200 {
				t.Errorf("%s, %s: %d %s", path, name, got.status, got.body)
			}
		}
		got := requests(engines, path)
		for _, r := range got {
			if strings.Contains(r.Body, "evil") || strings.Contains(r.Body, "9999999") {
				t.Errorf("%s: an engine got %.400s", path, r.Body)
			}
			gjson.Parse(r.Body).ForEach(func(key, _ gjson.Result) bool {
				if name := strings.ToLower(key.String()); slices.Contains(controlFields, name) && !slices.Contains(own, name) {
					t.Errorf("%s: an engine got the field %s", path, key)
				}
				return true
			})
		}
		if len(got) == 0 {
			t.Errorf("%s: nothing reached an engine at all", path)
		}
		for _, twice := range []string{
			`"kv_transfer_params":{"remote_host":"evil"},"kv_transfer_params":null`,
			`"rid":1,"r\u0069d":2`,
			`"extra_body":{"rid":1,"rid":2}`,
			`"extra_body":[{"rid":1,"rid":2}]`,
			"\"kv_transfer_params\xff\":1",
			"\"extra_body\":{\"rid\xc0\xaf\":1}",
		} {
			if got := c.post(path, strings.Replace(body, "@", twice, 1)); got.status != 400 {
				t.Errorf("%s, %s: %d", path, twice, got.status)
			}
		}
	}
}

// Token ids that would be read in place of the messages are none of a client's either, but
// where they are the API's prompt.
func TestEdge_TokenIDsDoNotReplaceTheMessages(t *testing.T) {
	of := clustersOf(t)
	for path, body := range controlAPIs {
		if path == "/generate" {
			continue
		}
		c, engines := of(path)
		if got := c.post(path, strings.Replace(body, "@", `"input_ids":[666],"prompt_token_ids":[666],"prompt_token_ids_b64":"666"`, 1)); got.status != 200 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
		for _, r := range requests(engines, path) {
			if strings.Contains(r.Body, "[666]") || strings.Contains(r.Body, `"666"`) {
				t.Errorf("%s: an engine got %s", path, r.Body)
			}
		}
	}
	c, _ := of("/generate")
	if got := c.post("/generate", `{"input_ids":[17,18,19],"sampling_params":{"max_new_tokens":2}}`); got.status != 200 {
		t.Errorf("/generate: %d %s", got.status, got.body)
	}
}

// vLLM reports the blocks that a request finds cached as stored once more, where the request asks for it. What is counted
// so would be believed for ever: it is evicted once.
func TestEdge_AClientCannotHaveBlocksReportedTwice(t *testing.T) {
	t.Parallel()
	small := func(role string) []*engine.Engine {
		return []*engine.Engine{startTestEngine(t, role, func(cfg *engine.Config) {
			publishing(cfg)
			cfg.Version, cfg.Blocks, cfg.MaxModelLen, cfg.TimeScale = "0.32.0+tandem.sim", 128, 1024, computing
		})}
	}
	c := newClusterOf(t, small(engine.RolePrefill), small(engine.RoleDecode), "engine", nil)
	ask := func(story int, extra string) {
		t.Helper()
		got := c.post(chatPath, fmt.Sprintf(`{"model":%q,"max_tokens":4,"messages":[{"role":"user","content":"%d. %s"}]%s}`, testModel, story, longPrompt, extra))
		if got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	for range 3 {
		ask(0, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`)
	}
	for story := range 8 { // in whose place the first is evicted
		ask(1+story, "")
	}
	for _, s := range c.node.fleet.Servers() {
		c.settle(s.ID())
	}
}

// Engines hold tokens of a stream back until they are as many as the request says. A stream that says nothing for long
// looks like a server that hangs, and the time between its events like that of a step.
func TestEdge_AClientCannotSilenceAStream(t *testing.T) {
	t.Parallel()
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { saltsMessages(cfg); cfg.TimeScale = 1 }})
	conn := c.dialRequest(chatBodyOf(4000, `,"ignore_eos":true,"stream":true,"stream_interval":100000`))
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for events := 0; events < 10; {
		if !lines.Scan() {
			t.Fatalf("%d events, %v", events, lines.Err())
		}
		if strings.HasPrefix(lines.Text(), "data:") {
			events++
		}
	}
	if n := sum(c.decode, func(s engine.State) int { return s.Running }); n != 1 {
		t.Error("the answer came when it was complete")
	}
}

// The client's own text may say what it likes.
func TestEdge_TextThatNamesControlFieldsStays(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	text := `{"model":"test-model","max_tokens":2,"messages":[{"role":"user","content":"kv_transfer_params","priority":"mine"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"priority":{"type":"string"}}}}}]}`
	if got := c.post(chatPath, text); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
	for _, leg := range append(requests(c.prefill, chatPath), requests(c.decode, chatPath)...) {
		if !strings.Contains(leg.Body, `"priority":"mine"`) || !strings.Contains(leg.Body, `"properties":{"priority"`) {
			t.Errorf("the client's text was changed: %s", leg.Body)
		}
	}
}
