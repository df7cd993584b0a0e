package proxybench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// modelLen is the context length that the engines report, in tokens.
const modelLen = 1 << 20

// versions are the engines that there are, and what they report. With that of vllm this gateway lets decode say all of
// an answer, as the other routers do; with newVLLM decode goes on behind prefill's first token.
var versions = map[string]string{"vllm": "0.20.0", newVLLM: "0.32.0", eventsEngine: "0.20.0", "sglang": "0.5.9"}

const newVLLM = "vllm-0.32"

// family is the engine without its version: vllm or sglang.
func (s *Server) family() string {
	name, _, _ := strings.Cut(s.Engine, "-")
	return name
}

// page appends the answer to what gateways ask of engines beside completions.
func (c *engineConn) page(b []byte, h head, body []byte) []byte {
	status, kind, text := "200 OK", "application/json", ""
	switch string(h.path) {
	case "/health", "/health_generate", "/ready":
	case "/v1/models":
		text = fmt.Sprintf(`{"object":"list","data":[{"id":%q,"object":"model","created":1760000000,"owned_by":%q,"root":%q,"parent":null,"max_model_len":%d}]}`,
			model, c.as.family(), model, modelLen)
	case "/version":
		text = fmt.Sprintf(`{"version":%q}`, versions[c.as.Engine])
	case "/metrics":
		kind, text = "text/plain; version=0.0.4; charset=utf-8", exposition[c.as.family()]
	case "/server_info", "/get_server_info":
		text = c.serverInfo()
	case "/model_info", "/get_model_info":
		text = `{"model_path":"` + model + `","tokenizer_path":"` + model + `","is_generation":true}`
	case "/tokenize":
		text = c.tokenizer.tokenized(body)
	default:
		status, text = "404 Not Found", `{"detail":"Not Found"}`
	}
	return append(appendHead(b, status, kind, len(text)), text...)
}

// serverInfo is what SGLang reports of its arguments, and vLLM of its connector.
func (c *engineConn) serverInfo() string {
	if c.as.family() == "vllm" {
		if c.as.Role == roleBoth {
			return `{"vllm_config":{"kv_transfer_config":null}}`
		}
		return `{"vllm_config":{"kv_transfer_config":{"kv_connector":"NixlConnector"}}}`
	}
	mode := c.as.Role
	if mode == roleBoth {
		mode = "null"
	}
	return fmt.Sprintf(`{"model_path":%q,"served_model_name":%q,"version":%q,"disaggregation_mode":%q,"disaggregation_bootstrap_port":8998,"page_size":%d,"kv_cache_dtype":"auto","max_total_num_tokens":%d}`,
		model, model, versions["sglang"], mode, blockTokens, kvRoom*blockTokens)
}

// kvRoom is how many blocks of KV an engine says that it has: room for all streams of a measure with long
// prompts, which are 55 million tokens. A gateway that waits for room would wait for ever.
const kvRoom = 1 << 23

// exposition is the metrics page of an engine: its load, its room for KV, and as many histograms as
// such engines have.
var exposition = map[string]string{
	"vllm": gauges(map[string]string{
		`vllm:num_requests_running{engine="0",model_name="bench"}`: "0", `vllm:num_requests_waiting{engine="0",model_name="bench"}`: "0",
		`vllm:kv_cache_usage_perc{engine="0",model_name="bench"}`:                                                                     "0.01",
		fmt.Sprintf(`vllm:cache_config_info{block_size="%d",cache_dtype="auto",engine="0",num_gpu_blocks="%d"}`, blockTokens, kvRoom): "1",
	}) + histograms("vllm"),
	"sglang": gauges(map[string]string{
		`sglang:num_running_reqs{model_name="bench"}`: "0", `sglang:num_queue_reqs{model_name="bench"}`: "0",
		`sglang:token_usage{model_name="bench"}`: "0.01", `sglang:max_total_num_tokens{model_name="bench"}`: fmt.Sprint(kvRoom * blockTokens),
		`sglang:page_size{model_name="bench"}`: fmt.Sprint(blockTokens),
	}) + histograms("sglang"),
}

func gauges(values map[string]string) string {
	var b strings.Builder
	for series, value := range values {
		name, _, _ := strings.Cut(series, "{")
		fmt.Fprintf(&b, "# TYPE %s gauge\n%s %s\n", name, series, value)
	}
	return b.String()
}

// histograms are twenty with twenty buckets: about what an engine at work shows.
func histograms(engine string) string {
	var b strings.Builder
	for family := range 20 {
		name := fmt.Sprintf("%s:phase_%d_seconds", engine, family)
		fmt.Fprintf(&b, "# TYPE %s histogram\n", name)
		for bucket := range 20 {
			fmt.Fprintf(&b, "%s_bucket{le=\"%g\",model_name=%q} %d\n", name, float64(bucket+1)/10, model, bucket)
		}
		fmt.Fprintf(&b, "%s_bucket{le=\"+Inf\",model_name=%q} 20\n%s_sum{model_name=%q} 12.5\n%s_count{model_name=%q} 20\n", name, model, name, model, name, model)
	}
	return b.String()
}

// tokenized is the answer of /tokenize.
func (t *tokenizer) tokenized(body []byte) string {
	chat := t.tokensOf(body)
	return fmt.Sprintf(`{"count":%d,"max_model_len":%d,"tokens":[%s]}`, len(chat.tokens), modelLen, chat.appendIDs(nil))
}

// serveControl serves the port by which the measurement asks what the engines saw.
func (e *Engines) serveControl(ctx context.Context, address string) error {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("GET /legs", func(w http.ResponseWriter, _ *http.Request) { answer(w, e.ledger.counts()) })
	mux.HandleFunc("GET /arrivals", func(w http.ResponseWriter, _ *http.Request) { answer(w, e.ledger.arrivals()) })
	mux.HandleFunc("GET /departures", func(w http.ResponseWriter, _ *http.Request) { answer(w, e.ledger.departures()) })
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) { e.ledger.reset(time.Now()) })
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return server.Serve(listener)
}
