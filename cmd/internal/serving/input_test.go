package serving

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/tandem-gateway/tandem/loadtest/engine"
)

func TestInput_BadRequestsAreRefusedBeforeAnyEngine(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.MaxBody = 1 << 20 }})
	const chat, completions, responses, messages = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
	msgs := `"messages":[{"role":"user","content":"hi"}]`
	for _, x := range []struct {
		name, path, body string
		status           int
		where            string // path of the error's param or code
		want             string
	}{
		{"malformed", chat, `{"model":`, 400, "error.type", "invalid_request_error"},
		{"empty", chat, ``, 400, "error.type", "invalid_request_error"},
		{"an array", chat, `[]`, 400, "error.type", "invalid_request_error"},
		{"100,000 brackets", chat, `{"model":"test-model","messages":` + strings.Repeat("[", 100_000), 400, "error.type", "invalid_request_error"},
		{"invalid UTF-8", chat, "{\"model\":\"test-model\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400, "error.type", "invalid_request_error"},
		{"no model in Anthropic's shape", messages, `{"max_tokens":5,` + msgs + `}`, 400, "error.type", "invalid_request_error"},
		{"model is a number", chat, `{"model":7,` + msgs + `}`, 400, "error.param", "model"},
		{"model twice", chat, `{"model":"test-model","model":"test-model",` + msgs + `}`, 400, "error.type", "invalid_request_error"},
		{"model twice, escaped", chat, `{"model":"test-model","mod\u0065l":"x",` + msgs + `}`, 400, "error.type", "invalid_request_error"},
		{"unknown model", chat, `{"model":"nope",` + msgs + `}`, 404, "error.code", "model_not_found"},
		{"no messages", chat, `{"model":"test-model"}`, 400, "error.param", "messages"},
		{"messages is a string", chat, `{"model":"test-model","messages":"hi"}`, 400, "error.param", "messages"},
		{"messages is empty", chat, `{"model":"test-model","messages":[]}`, 400, "error.param", "messages"},
		{"prompt is an object", completions, `{"model":"test-model","prompt":{}}`, 400, "error.param", "prompt"},
		{"stream is a string", chat, `{"model":"test-model","stream":"true",` + msgs + `}`, 400, "error.param", "stream"},
		{"stream_options without stream", chat, `{"model":"test-model","stream_options":{"include_usage":true},` + msgs + `}`, 400, "error.param", "stream_options"},
		{"stream_options is a list", chat, `{"model":"test-model","stream":true,"stream_options":[],` + msgs + `}`, 400, "error.param", "stream_options"},
		{"include_usage twice", chat, `{"model":"test-model","stream":true,"stream_options":{"include_usage":true,"include_usage":false},` + msgs + `}`, 400, "error.param", "stream_options"},
		{"max_tokens negative", chat, `{"model":"test-model","max_tokens":-1,` + msgs + `}`, 400, "error.param", "max_tokens"},
		{"max_tokens a fraction", chat, `{"model":"test-model","max_tokens":1.5,` + msgs + `}`, 400, "error.param", "max_tokens"},
		{"max_tokens huge", chat, `{"model":"test-model","max_tokens":99999999999999999999,` + msgs + `}`, 400, "error.param", "max_tokens"},
		{"max_tokens beyond the context", chat, `{"model":"test-model","max_tokens":10000000,` + msgs + `}`, 400, "error.param", "max_tokens"},
		{"min above max", chat, `{"model":"test-model","max_tokens":2,"min_tokens":3,` + msgs + `}`, 400, "error.param", "min_tokens"},
		{"n is zero", chat, `{"model":"test-model","n":0,` + msgs + `}`, 400, "error.param", "n"},
		{"stored responses", responses, `{"model":"test-model","input":"hi","previous_response_id":"resp_1"}`, 400, "error.param", "previous_response_id"},
		{"a stored conversation", responses, `{"model":"test-model","input":"hi","conversation":{"id":"conv_1"}}`, 400, "error.param", "conversation"},
		{"a stored prompt", responses, `{"model":"test-model","prompt":{"id":"pmpt_1"}}`, 400, "error.param", "prompt"},
		{"background responses", responses, `{"model":"test-model","input":"hi","background":true}`, 400, "error.param", "background"},
		{"Anthropic's shape", messages, `{"model":"nope","max_tokens":5,` + msgs + `}`, 404, "error.type", "not_found_error"},
		{"Anthropic's shape of 400", messages, `{`, 400, "type", "error"},
	} {
		got := c.post(x.path, x.body)
		if got.status != x.status || gjson.Get(got.body, x.where).String() != x.want || gjson.Get(got.body, "error.message").String() == "" {
			t.Errorf("%s: %d %s", x.name, got.status, got.body)
		}
	}
	if got := c.post(chat, `{"s3cr3t":1,"s3cr3t":2,`+msgs+`}`); got.status != 400 || strings.Contains(got.body, "s3cr3t") {
		t.Errorf("a field of the client's, twice: %d %s", got.status, got.body)
	}
	if n := len(requests(c.prefill, chat)) + len(requests(c.decode, chat)); n != 0 {
		t.Errorf("%d of them reached an engine", n)
	}
	for coding, want := range map[string]int{"gzip": 400, "br": 400, "zstd": 400, "compress": 415} {
		if got := c.post(chat, chatBody(""), "Content-Encoding", coding); got.status != want {
			t.Errorf("a body that is not compressed as %s: %d %s", coding, got.status, got.body)
		}
	}
	if got := c.post(chat, `{"model":"test-model","messages":[{"role":"user","content":"`+strings.Repeat("x", 1<<20)+`"}]}`); got.status != 413 || gjson.Get(got.body, "error.message").String() == "" {
		t.Errorf("a body over the limit: %d %s", got.status, got.body)
	}
}

func TestInput_AContextTooLongIsTheEnginesOwn400(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.MaxModelLen = 256 }})
	got := c.post("/v1/chat/completions", chatBody(""))
	if got.status != 400 || !strings.Contains(gjson.Get(got.body, "error.message").String(), "maximum context length") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if n := len(requests(c.decode, "/v1/chat/completions")); n != 0 {
		t.Errorf("decode was asked %d times", n)
	}
	if got := c.metric("tandem_retries_total"); got != 0 {
		t.Errorf("%v retries of a request that is at fault", got)
	}
}

// A bound on the answer beyond the model's context is refused here, as vLLM does it: no shorter prompt would help. Up to
// that it is the engine's to say.
func TestInput_AnAnswerLongerThanTheContext(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, engine: func(cfg *engine.Config) { cfg.MaxModelLen, cfg.Version = 256, "0.32.0" }})
	for most, want := range map[string]int{"200": 200, "256": 200, "257": 400} {
		got := c.post("/v1/completions", `{"model":"test-model","prompt":"hi there","ignore_eos":true,"max_tokens":`+most+`}`)
		if got.status != want {
			t.Errorf("max_tokens %s: %d %s", most, got.status, got.body)
		}
		if want == 200 {
			continue
		}
		e := gjson.Get(got.body, "error")
		engine := askEngine(t, c.decode[0], "/v1/completions", `{"model":"test-model","prompt":"hi there","max_tokens":`+most+`}`)
		if said := e.Get("message").Str; said != gjson.Get(engine.body, "error.message").Str || e.Get("code").Type != gjson.Null || e.Get("param").Str != "max_tokens" {
			t.Errorf("max_tokens %s: %s\nthe engine: %s", most, got.body, engine.body)
		}
	}
	for _, prompt := range []int{230, 255} { // behind 255 there is room for prefill's token and no other
		ids := strings.TrimSuffix(strings.Repeat("7,", prompt), ",")
		for _, stream := range []string{"false", "true"} {
			got := c.post("/v1/completions", `{"model":"test-model","prompt":[`+ids+`],"ignore_eos":true,"max_tokens":200,"stream":`+stream+`,"stream_options":`+
				map[string]string{"false": "null", "true": `{"include_usage":true}`}[stream]+`}`)
			if want := fmt.Sprintf(`"completion_tokens":%d`, 256-prompt); got.status != 200 || !strings.Contains(got.body, want) || strings.Contains(got.body, `"error"`) {
				t.Errorf("%d tokens, streamed %s: %d %s", prompt, stream, got.status, got.body)
			}
		}
	}
}

// What decode is certain to refuse for its length no prefill computes: of vLLM before 0.32 a prompt and a bound that do
// not fit together, of every vLLM a prompt behind which there is no room.
func TestInput_WhatCannotFitReachesNoEngine(t *testing.T) {
	const completions, chats, responses = "/v1/completions", "/v1/chat/completions", "/v1/responses"
	ids := func(n int) string { return `"prompt":[` + strings.TrimSuffix(strings.Repeat("7,", n), ",") + `]` }
	said := strings.Repeat("tell me of the sea ", 20)
	for _, x := range []struct {
		name, version, path, fields string
		param                       string // "": it is for the engines to say
	}{
		{"a bound that fits", "0.31.0", completions, ids(200) + `,"max_tokens":56`, ""},
		{"a bound that does not", "0.31.0", completions, ids(200) + `,"max_tokens":57`, "max_tokens"},
		{"one that vLLM shortens", "0.32.0", completions, ids(200) + `,"max_tokens":57`, ""},
		{"a version that is not known", "main", completions, ids(200) + `,"max_tokens":57`, ""},
		{"completions have a bound of their own", "0.31.0", completions, ids(241), "max_tokens"},
		{"and none that is null", "0.31.0", completions, ids(241) + `,"max_tokens":null`, ""},
		{"a prompt with room for a token", "0.32.0", completions, ids(255), ""},
		{"a prompt with none", "0.32.0", completions, ids(256), "prompt"},
		{"one that is cut", "0.31.0", completions, ids(256) + `,"truncate_prompt_tokens":9`, ""},
		{"several answers", "0.31.0", completions, ids(200) + `,"max_tokens":57,"n":2`, ""}, // decode alone refuses it at once
		{"a prompt of text", "0.31.0", completions, `"prompt":"` + said + `","max_tokens":240`, "max_tokens"},
		{"a chat that /tokenize has counted", "0.31.0", chats, `"messages":[{"role":"user","content":"` + said + `"}],"max_completion_tokens":240`, ""},
		{"a response that vLLM shortens", "0.31.0", responses, `"input":"` + said + `","max_output_tokens":240`, ""},
	} {
		start := func(role string) []*engine.Engine {
			return []*engine.Engine{startTestEngine(t, role, func(cfg *engine.Config) {
				publishing(cfg)
				cfg.MaxModelLen, cfg.Version = 256, x.version
			})}
		}
		c := newClusterOf(t, start(engine.RolePrefill), start(engine.RoleDecode), "engine", func(cfg *config) { cfg.kv.asking.AskOver = 0 })
		got := c.post(x.path, `{"model":"test-model",`+x.fields+`}`)
		e, asked := gjson.Get(got.body, "error"), len(requests(c.prefill, x.path))+len(requests(c.decode, x.path))
		if x.param == "" {
			if asked == 0 {
				t.Errorf("%s reached no engine: %d %s", x.name, got.status, got.body)
			}
			continue
		}
		if got.status != 400 || e.Get("code").String() != "context_length_exceeded" || e.Get("param").String() != x.param ||
			!strings.Contains(e.Get("message").String(), "maximum context length is 256 tokens") || asked != 0 {
			t.Errorf("%s: %d legs, %d %s", x.name, asked, got.status, got.body)
		}
	}
}

// A bound is held against the context of decode, which prefill's may be longer than.
func TestInput_ABoundBeyondDecodesContext(t *testing.T) {
	start := func(role string, longest int) []*engine.Engine {
		return []*engine.Engine{startTestEngine(t, role, func(cfg *engine.Config) { cfg.MaxModelLen, cfg.Version = longest, "0.32.0" })}
	}
	c := newClusterOf(t, start(engine.RolePrefill, 900), start(engine.RoleDecode, 300), "approximate", nil)
	legs := func() int {
		return len(requests(c.prefill, "/v1/completions")) + len(requests(c.decode, "/v1/completions"))
	}
	for most, want := range map[int]int{300: 200, 301: 400} {
		before := legs()
		got := c.post("/v1/completions", fmt.Sprintf(`{"model":"test-model","prompt":"hi","max_tokens":%d}`, most))
		if got.status != want || (legs() == before) != (want == 400) {
			t.Errorf("max_tokens %d: %d legs, %d %s", most, legs()-before, got.status, got.body)
		}
	}
}

func TestInput_TheConnectionStaysUsable(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	for i, body := range []string{`{`, `{"model":"nope","messages":[{}]}`, chatBody(""), `[]`, chatBody(`,"stream":true`), chatBody("")} {
		_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		got := readResponse(resp)
		if want := []int{400, 404, 200, 400, 200, 200}[i]; got.status != want || got.err != nil {
			t.Errorf("request %d: %d, %v", i, got.status, got.err)
		}
	}
}

func TestInput_NoServerIs503WithRetryAfter(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.pd.UnresponsiveWait = 100 * time.Millisecond }})
	for _, e := range c.decode {
		e.SetFault(engine.Fault{Kind: engine.FaultUnhealthy})
	}
	eventually(t, "decode is out", func() bool { return c.get("/readyz").status == 503 })
	start := time.Now()
	got := c.post("/v1/chat/completions", chatBody(""))
	if got.status != 503 || got.header.Get("Retry-After") == "" || got.header.Get("Retry-After-Ms") == "" || gjson.Get(got.body, "error.code").String() != "no_server" {
		t.Errorf("%d %v %s", got.status, got.header, got.body)
	}
	if took := time.Since(start); took > 10*time.Second { // one that waits does so for 30 s
		t.Errorf("answered after %v", took)
	}
	resp, err := c.client.Get(c.base + "/health")
	if err != nil {
		t.Fatal(err)
	}
	if got := readResponse(resp); got.status != 503 || got.body != "" {
		t.Errorf("health: %d %q", got.status, got.body)
	}
	for _, e := range c.decode {
		e.ClearFaults()
	}
	eventually(t, "decode is back", func() bool { return c.get("/readyz").status == 200 })
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
}

func TestInput_ControlHeadersNeverReachAnEngine(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.pools.ORCA = "" }}) // the gateway asks by itself
	names := []string{"x-data-parallel-rank", "x-data-parallel-host-port", "x-prefiller-host-port", "x_prefiller_host_port", "X-PREFILLER-HOST-PORT",
		"x-encoder-hosts-ports", "x-kv-cache-source-host-port", "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "target-pod",
		"routing-strategy", "epp-profile", "prefer", "endpoint-load-metrics-format", "baggage", "connection", "te", "upgrade", "proxy-authorization", "x-whatever"}
	var headers []string
	for _, n := range names {
		headers = append(headers, n, "evil")
	}
	if got := c.post("/v1/chat/completions", chatBody(""), append(headers, "Authorization", "Bearer k")...); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	allowed := []string{"Accept-Encoding", "Authorization", "Content-Length", "Content-Type", "Traceparent", "User-Agent", "X-Request-Id"}
	for _, r := range append(requests(c.prefill, "/v1/chat/completions"), requests(c.decode, "/v1/chat/completions")...) {
		for _, name := range r.HeaderNames {
			if !strings.Contains(strings.Join(allowed, " "), name) {
				t.Errorf("an engine got the header %s", name)
			}
		}
	}
}

// enginePaths are the engines' own; none may be reached through the gateway.
const enginePaths = `/metrics /load /server_info /get_server_info /model_info /get_model_info /health_generate /ping /version /v1/loads /get_load /flush_cache /abort_request /abort_requests /pause /resume /is_paused /pause_generation /continue_generation /sleep /wake_up /is_sleeping /reset_prefix_cache /reset_mm_cache /reset_encoder_cache /collective_rpc /scale_elastic_ep /is_scaling_elastic_ep /load_lora_adapter /unload_lora_adapter /v1/load_lora_adapter /v1/unload_lora_adapter /update_weights /update_weights_from_disk /update_weights_from_tensor /update_weights_from_distributed /init_weights_update_group /get_weights_by_name /release_memory_occupation /resume_memory_occupation /start_profile /stop_profile /start_expert_distribution_record /stop_expert_distribution_record /dump_expert_distribution_record /slow_down /configure_logging /set_internal_state /freeze_gc /invocations /inference/v1/generate /generate /derender /admin/config /fake_metrics /query /prometheus/metrics /debug/pprof /debug/decisions /debug/servers /readyz /ui/ /autoscale/v1/pool /docs /openapi.json /redoc /sim/state /v1/chat/completions/ /V1/chat/completions /v1/chat/completions;x /v1/chat /`

func TestInput_EverythingElseIs404(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for path := range strings.FieldsSeq(enginePaths) {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
			req, err := http.NewRequestWithContext(t.Context(), method, c.base+path, strings.NewReader(`{}`))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := c.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if got := readResponse(resp); got.status != 404 || gjson.Get(got.body, "error.message").String() == "" {
				t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
			}
		}
	}
	for wrong, allowed := range map[string]string{"GET /v1/chat/completions": "POST", "DELETE /v1/models": "GET", "POST /health": "GET", "GET /v1/messages": "POST", "PUT /v1/responses/resp_1": "GET"} {
		method, path, _ := strings.Cut(wrong, " ")
		req, _ := http.NewRequestWithContext(t.Context(), method, c.base+path, nil)
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := readResponse(resp); got.status != 405 || !strings.Contains(got.header.Get("Allow"), allowed) || gjson.Get(got.body, "error.message").String() == "" {
			t.Errorf("%s: %d, allowed is %q: %s", wrong, got.status, got.header.Get("Allow"), got.body)
		}
	}
	for _, e := range append(c.prefill, c.decode...) {
		if n := len(e.State().Requests); n != 0 {
			t.Errorf("%d requests reached an engine", n)
		}
	}
}

func TestInput_MalformedHTTPIsNotEchoed(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for _, raw := range []string{
		"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: xchunked\r\n\r\n",
		"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer secret\r\nX: a\x00b\r\n\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(raw))
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := readResponse(resp)
		if got.status != 400 || strings.Contains(got.body, "secret") || !json.Valid([]byte(got.body)) {
			t.Errorf("%q: %d %s", raw, got.status, got.body)
		}
		_ = conn.Close()
	}
}

// What decode would refuse after a whole prefill goes to decode first.
func TestInput_OddLimitsSpendNoPrefill(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	for _, odd := range []string{`"max_tokens":0`, `"max_completion_tokens":0`, `"stop":5`, `"stop":[5]`, `"logprobs":"x"`, `"logprobs":true,"top_logprobs":9999`,
		`"min_tokens":-1`, `"min_tokens":"x"`, `"stop_token_ids":"x"`, `"stop_token_ids":["x"]`} {
		body := strings.Replace(chatBody(","+odd), `"max_tokens":24,`, "", 1)
		c.post("/v1/chat/completions", body)
	}
	c.post("/v1/messages", `{"model":"test-model","messages":[{"role":"user","content":"`+longPrompt+`"}]}`)
	if n := len(requests(c.prefill, "/v1/chat/completions")) + len(requests(c.prefill, "/v1/messages")); n != 0 {
		t.Errorf("%d prefills were spent", n)
	}
}

// A write deadline that is left behind cut the next answer of a kept connection.
func TestInput_AKeptConnectionOutlivesTheWriteTimeout(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // within which a busy machine writes too
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.WriteTimeout = limit }})
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	in := bufio.NewReader(conn)
	ask := func(request string) {
		t.Helper()
		_, _ = fmt.Fprint(conn, request)
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := readResponse(resp); got.err != nil {
			t.Fatal(got.err)
		}
	}
	body := chatBody("")
	ask(fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	past := time.Now().Add(limit + 50*time.Millisecond)
	eventually(t, "the write timeout has passed", func() bool { return time.Now().After(past) })
	ask("GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
}

// A client that writes all before it reads still gets the 413.
func TestInput_ARefusedBodyIsReadToItsEnd(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.MaxBody = 1 << 20 }})
	for range 5 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 8<<20)
		for range 8 {
			if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
				t.Fatalf("the gateway hung up: %v", err)
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := readResponse(resp); got.status != 413 {
			t.Errorf("%d %s", got.status, got.body)
		}
		_ = conn.Close()
	}
}

// Bodies that arrive slowly fill no memory: beyond the bound they are refused, short ones
// are not.
func TestInput_BodiesThatArriveAreBounded(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.pd.queue.MaxBytes = 4 << 20 }})
	const length = 1 << 20
	body := strings.Replace(chatBody(""), "{", "{"+strings.Repeat(" ", length-len(chatBody(""))), 1)
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", length)
	var conns []net.Conn
	for range 8 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, head+body[:length-1]); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		conns = append(conns, conn)
	}
	eventually(t, "those beyond the bound are refused", func() bool { return c.metric("tandem_requests_total", `outcome="overloaded"`) == 4 })
	if got := c.post("/v1/chat/completions", chatBody("")); got.status != 200 {
		t.Errorf("a short one beside them: %d %s", got.status, got.body)
	}
	statuses := make(map[int]int)
	for _, conn := range conns {
		_, _ = io.WriteString(conn, body[length-1:]) // those refused take it or not
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := readResponse(resp)
		statuses[got.status]++
		if got.status == 503 && (resp.Header.Get("Retry-After") == "" || gjson.Get(got.body, "error.code").String() != "overloaded") {
			t.Errorf("%d %v %s", got.status, resp.Header, got.body)
		}
	}
	if statuses[200] < 3 || statuses[503] < 4 || statuses[200]+statuses[503] != len(conns) {
		t.Errorf("answered with %v", statuses)
	}
}

// What is left of a body that was refused unread is no request of its own.
func TestInput_AnUnreadBodyIsNotTakenForARequest(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1, config: func(cfg *config) { cfg.gateway.MaxBody = 1 << 20 }})
	hidden := "GET /health HTTP/1.1\r\nHost: hidden\r\n\r\n"
	long := strings.Repeat(hidden, 1<<10)
	for name, request := range map[string]string{
		"no such path":            fmt.Sprintf("POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(long), long),
		"no such path, in chunks": fmt.Sprintf("POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long),
		"a GET with a body":       fmt.Sprintf("GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(long), long),
		"compressed":              fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(long), long),
		"too large":               fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 2<<20, long),
		"too large, in chunks":    fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", 40*len(long), strings.Repeat(long, 40)),
		"a broken chunk":          "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + hidden,
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, request)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		answers, err := io.ReadAll(conn)
		if n := strings.Count(string(answers), "HTTP/1.1 "); n != 1 || err != nil {
			t.Errorf("%s: %d answers, %v", name, n, err)
		}
		_ = conn.Close()
	}
	// One that was read with its head leaves nothing: the connection serves on.
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s%s", len(hidden), hidden, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(conn)
	for _, want := range []int{404, 200} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := readResponse(resp); got.status != want {
			t.Errorf("%d %s, want %d", got.status, got.body, want)
		}
	}
}

// A body that ends before its length, or before its last chunk, is the client's leaving,
// and no request.
func TestInput_HalfABodyReachesNoEngine(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	body := chatBody("")
	for what, sent := range map[string]string{
		"one byte less":                   fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body)+1, body),
		"more than is read with the head": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body)+30_000, body),
		"no last chunk":                   fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(body), body),
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", sent)
		_ = conn.(*net.TCPConn).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if answer, err := io.ReadAll(conn); err != nil || strings.Contains(string(answer), " 200 ") {
			t.Errorf("%s: %v %s", what, err, answer)
		}
		_ = conn.Close()
	}
	if n := len(requests(c.prefill, "/v1/chat/completions")) + len(requests(c.decode, "/v1/chat/completions")); n != 0 {
		t.Errorf("%d of them reached an engine", n)
	}
}

// HTTP/1.0 knows no chunks: a stream ends with its connection.
func TestInput_AClientOfHTTP10GetsAStreamWithoutChunks(t *testing.T) {
	c := newCluster(t, shape{prefill: 1, decode: 1})
	ask := func(body string) (head, text string) {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		_, _ = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Fatalf("%v after %.200s", err, all)
		}
		head, text, _ = strings.Cut(string(all), "\r\n\r\n")
		return strings.ToLower(head), text
	}
	body := chatBody(`,"stream":true`)
	head, text := ask(body)
	if !strings.HasPrefix(head, "http/1.0 200 ok") || !strings.Contains(head, "text/event-stream") || !strings.Contains(head, "x-request-id: ") || strings.Contains(head, "chunked") || strings.Contains(head, "content-length") {
		t.Errorf("head %s", head)
	}
	if !strings.HasPrefix(text, "data: {") || !strings.HasSuffix(text, "data: [DONE]\n\n") || strings.Count(text, "data: ") != len(c.post(chatPath, body).events) {
		t.Errorf("body %.300s", text)
	}
	if head, text := ask(chatBody("")); !strings.Contains(head, "content-length") || !gjson.Valid(text) {
		t.Errorf("a whole answer: %s\n%.200s", head, text)
	}
	c.decode[0].SetFault(engine.Fault{Kind: engine.FaultDieAfterTokens, Tokens: 5})
	if _, text := ask(body); !strings.Contains(text, `"error"`) || strings.Contains(text, "[DONE]") {
		t.Errorf("a stream that broke: %.500s", text)
	}
	c.decode[0].ClearFaults()
	eventually(t, "nothing is in flight", func() bool { return c.metric("tandem_in_flight_requests") == 0 })
}
