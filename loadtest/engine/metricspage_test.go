package engine

import (
	"strings"
	"testing"
	"time"
)

// A page of metrics is kept while nothing of it has changed, each rank's by itself; what a
// request counts, and a gauge alone, is on the next.
func TestMetrics_APageIsKeptUntilAnythingChanges(t *testing.T) {
	e := start(t, func(cfg *Config) { cfg.DataParallel, cfg.Adapters = 2, []string{"ada"} })
	read := func() string {
		t.Helper()
		_, raw := get(t, e.URL()+"/metrics")
		return string(raw)
	}
	kept := func() map[pageKey]*page {
		e.pages.mu.Lock()
		defer e.pages.mu.Unlock()
		return e.pages.pages
	}
	sum := func(text, name string) (n int) {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, name+"{") && !strings.HasSuffix(line, " 0\n") {
				n++
			}
		}
		return n
	}

	first := read()
	pages := kept()
	if again := read(); again != first || len(pages) != 1 {
		t.Errorf("at rest the page is another, %d are kept", len(pages))
	}
	for key, p := range kept() {
		if pages[key] != p {
			t.Error("at rest the page is written again")
		}
	}

	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(60, 10))
	counted := read()
	for _, name := range []string{
		"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:prefix_cache_queries_total",
		"vllm:time_to_first_token_seconds_count", "vllm:request_prompt_tokens_sum",
	} {
		if sum(first, name) != 0 || sum(counted, name) != 1 {
			t.Errorf("%s: %d ranks before a request, %d after it, want 0 and 1", name, sum(first, name), sum(counted, name))
		}
	}

	e.ranks[1].meters.recordTransfer(time.Second, 3, 1<<20) // histograms only
	if transferred := read(); sum(transferred, "vllm:nixl_xfer_time_seconds_count") != 1 {
		t.Error("a transfer is not on the page")
	}

	if status, raw := post(t, e, "/sleep", fields{}); status != 200 {
		t.Fatalf("%d %s", status, raw)
	}
	if asleep := read(); strings.Count(asleep, `sleep_state="discard_all"} 1`) != 2 || strings.Contains(counted, `sleep_state="discard_all"} 1`) {
		t.Error("a sleep that nothing counts is not on the page")
	}
	if status, raw := post(t, e, "/wake_up", fields{}); status != 200 {
		t.Fatalf("%d %s", status, raw)
	}

	ask[chatAnswer](t, e, "/v1/chat/completions", chatBody(60, 10).with(fields{"model": "ada"}))
	adapters := read()
	pages = kept()
	read()
	if sum(adapters, "vllm:lora_requests_info") != 1 {
		t.Error("the adapter is not on the page")
	}
	for key, p := range kept() {
		if pages[key] == p {
			t.Error("a page that shows the time is kept")
		}
	}
}
