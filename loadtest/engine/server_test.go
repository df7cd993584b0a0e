package engine

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// orcaOf is the load that an engine reports with an answer.
func orcaOf(t *testing.T, e *Engine, format string, streamed bool) string {
	t.Helper()
	req := request(t, t.Context(), e, "/v1/chat/completions", chatBody(5, 3).with(fields{"stream": streamed}))
	req.Header.Set("endpoint-load-metrics-format", format)
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
	return resp.Header.Get("endpoint-load-metrics")
}

func TestServer_ORCAOfRanksNamesNone(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.DataParallel = 2 })
	if got := orcaOf(t, e, "TEXT", false); got != "TEXT named_metrics.num_requests_waiting=0, named_metrics.num_requests_waiting=0, named_metrics.kv_cache_usage_perc=0, named_metrics.kv_cache_usage_perc=0" {
		t.Errorf("TEXT: %q", got)
	}
	if got := orcaOf(t, e, "JSON", false); got != `JSON {"named_metrics":{"kv_cache_usage_perc":0,"num_requests_waiting":0}}` {
		t.Errorf("JSON: %q", got)
	}
}

func TestServer_ORCAOnlyWhenAskedAndNotStreamed(t *testing.T) {
	e := start(t, nil)
	send := func(format string, streamed bool) string { return orcaOf(t, e, format, streamed) }
	if got := send("TEXT", false); got != "TEXT named_metrics.num_requests_waiting=0, named_metrics.kv_cache_usage_perc=0" {
		t.Errorf("TEXT: %q", got)
	}
	if got := send("JSON", false); got != `JSON {"named_metrics":{"kv_cache_usage_perc":0,"num_requests_waiting":0}}` {
		t.Errorf("JSON: %q", got)
	}
	if got := send("BIN", false) + send("TEXT", true); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestServer_RecordsWhatReachedIt(t *testing.T) {
	e := start(t, nil)
	req := request(t, t.Context(), e, "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"unknown":9007199254740993}`)
	req.Header.Set("X-Request-Id", "abc")
	req.Header.Set("traceparent", "00-1-2-03")
	req.Header.Set("X-Odd", "secret")
	resp, err := client.Do(req)
	must(t, err)
	defer resp.Body.Close()
	var answer chatAnswer
	must(t, json.NewDecoder(resp.Body).Decode(&answer))
	if answer.ID != "chatcmpl-abc" {
		t.Errorf("id %q", answer.ID)
	}
	_, raw := get(t, e.URL()+"/sim/state")
	var s State
	must(t, json.Unmarshal(raw, &s))
	got := s.Requests[0]
	if got.RequestID != "abc" || got.Traceparent != "00-1-2-03" || !slices.Contains(got.HeaderNames, "X-Odd") || !strings.Contains(got.Body, "9007199254740993") {
		t.Errorf("%+v", got)
	}
	if strings.Contains(string(raw), "secret") {
		t.Error("a header's value was recorded")
	}
	if s.RequestsByPath["/v1/chat/completions"] != 1 {
		t.Errorf("%v", s.RequestsByPath)
	}
}

func TestServer_Metrics(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.Adapters = []string{"ada"} })
	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(60, 10).with(fields{"model": "ada"}))
	status, raw := get(t, e.URL()+"/metrics")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	for _, line := range []string{
		`vllm:num_requests_running{engine="0",model_name="sim-model"} 0`,
		`vllm:num_requests_waiting{engine="0",model_name="sim-model"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="sim-model"} 0`,
		`vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",kv_cache_size_tokens="8192",num_gpu_blocks="512"} 1`,
		`vllm:generation_tokens_total{engine="0",model_name="sim-model"} 10`,
		`vllm:prefix_cache_hits_total{engine="0",model_name="sim-model"} 0`,
		`vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="sim-model"} 0`,
		`vllm:nixl_num_failed_transfers_total{engine="0",model_name="sim-model"} 0`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="sim-model"} 1`,
		`vllm:inter_token_latency_seconds_count{engine="0",model_name="sim-model"} 9`,
		`vllm:e2e_request_latency_seconds_count{engine="0",model_name="sim-model"} 1`,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="sim-model"} 1`,
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} `,
	} {
		if !strings.Contains(string(raw), line) {
			t.Errorf("no line %s", line)
		}
	}
}

// An adapter that runs is listed as waiting too, and one that waits is not listed.
func TestServer_AdaptersThatRunAreListedAsWaitingToo(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.Adapters, cfg.MaxAdapters, cfg.TimeScale = []string{"ada", "eve"}, 1, 0.2 })
	var all sync.WaitGroup
	for _, name := range []string{"ada", "eve"} {
		all.Go(func() {
			if status, raw := post(t, e, "/v1/chat/completions", chatBody(30, 100).with(fields{"model": name})); status != 200 {
				t.Errorf("%d %s", status, raw)
			}
		})
	}
	eventually(t, "one runs and one waits", func() bool {
		_, raw := get(t, e.URL()+"/metrics")
		page := string(raw)
		const listed = `vllm:lora_requests_info{max_lora="1",running_lora_adapters="%[1]s",waiting_lora_adapters="%[1]s"} `
		waits := strings.Contains(page, `vllm:num_requests_waiting{engine="0",model_name="sim-model"} 1`)
		return waits && (strings.Contains(page, fmt.Sprintf(listed, "ada")) || strings.Contains(page, fmt.Sprintf(listed, "eve")))
	})
	all.Wait()
}

func TestServer_AdaptersComeAndGo(t *testing.T) {
	e := start(t, nil)
	body := chatBody(30, 10).with(fields{"model": "ada"})
	if status, _ := post(t, e, "/v1/chat/completions", body); status != 404 {
		t.Errorf("before: %d", status)
	}
	load := fields{"lora_name": "ada", "lora_path": "/ada"}
	if status, raw := post(t, e, "/v1/load_lora_adapter", load); status != 200 {
		t.Fatalf("load: %d %s", status, raw)
	}
	if status, _ := post(t, e, "/v1/load_lora_adapter", load); status != 400 {
		t.Errorf("twice: %d", status)
	}
	adapted := ask[chatAnswer](t, e, "/v1/chat/completions", body).content()
	if plain := ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(30, 10)); plain.content() == adapted || plain.Usage.Details != nil {
		t.Error("an adapter changes the answer and shares no KV")
	}
	_, models := get(t, e.URL()+"/v1/models")
	if !strings.Contains(string(models), `"parent":"sim-model"`) {
		t.Errorf("models %s", models)
	}
	if status, _ := post(t, e, "/v1/unload_lora_adapter", load); status != 200 {
		t.Errorf("unload: %d", status)
	}
	if status, _ := post(t, e, "/v1/unload_lora_adapter", load); status != 404 {
		t.Errorf("unload twice: %d", status)
	}
}

func TestServer_Sleeps(t *testing.T) {
	e := start(t, nil)
	prefill(t, e, chatBody(30, 1))
	post(t, e, "/sleep?level=1", fields{})
	if s := e.State(); !s.Sleeping || s.HandoffsOpen != 0 || len(e.Blocks()) != 0 {
		t.Errorf("%+v", s)
	}
	if status, _ := post(t, e, "/v1/chat/completions", chatBody(5, 3)); status != 503 {
		t.Errorf("asleep: %d", status)
	}
	if _, raw := get(t, e.URL()+"/is_sleeping"); string(raw) != `{"is_sleeping":true}` {
		t.Errorf("%s", raw)
	}
	post(t, e, "/wake_up", fields{})
	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(5, 3))
}

func TestServer_DataParallelRanks(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.DataParallel = 3 })
	send := func(rank string) chatAnswer {
		req := request(t, t.Context(), e, "/v1/chat/completions", chatBody(60, 3))
		if rank != "" {
			req.Header.Set("X-data-parallel-rank", rank)
		}
		resp, err := client.Do(req)
		must(t, err)
		defer resp.Body.Close()
		var answer chatAnswer
		must(t, json.NewDecoder(resp.Body).Decode(&answer))
		return answer
	}
	for i, c := range []struct {
		rank   string
		cached bool
	}{{"1", false}, {"1", true}, {"2", false}, {"2", true}} {
		if got := send(c.rank).Usage.Details != nil; got != c.cached {
			t.Errorf("request %d to rank %s: cached %v", i, c.rank, got)
		}
	}
	held := map[int]int{}
	for _, b := range e.Blocks() {
		held[b.Rank]++
	}
	if held[0] != 0 || held[1] == 0 || held[1] != held[2] {
		t.Errorf("blocks by rank: %v", held)
	}
	send("nonsense") // ignored
	d := start(t, nil)
	body := chatBody(60, 5)
	decode(t, d, body, prefill(t, e, body))
	if s := d.State(); s.Recomputed != 0 || e.State().HandoffsPulled != 1 {
		t.Errorf("recomputed %v", s.RecomputedByReason)
	}
}

func TestServer_Embeddings(t *testing.T) {
	type answer struct {
		ID   string
		Data []struct{ Embedding []float64 }
	}
	e := start(t, nil)
	got := ask[answer](t, e, "/v1/embeddings", fields{"input": []string{"a", "b", "a"}})
	sum := 0.0
	for _, v := range got.Data[0].Embedding {
		sum += v * v
	}
	if len(got.Data) != 3 || sum < 0.99 || sum > 1.01 || !slices.Equal(got.Data[0].Embedding, got.Data[2].Embedding) || slices.Equal(got.Data[0].Embedding, got.Data[1].Embedding) {
		t.Errorf("%+v", got)
	}
	if !strings.HasPrefix(got.ID, "embd-") {
		t.Errorf("id %s", got.ID)
	}
	off := start(t, func(cfg *Config) { cfg.Embeddings = false })
	if status, _ := post(t, off, "/v1/embeddings", fields{"input": "a"}); status != 404 {
		t.Errorf("status %d", status)
	}
}
