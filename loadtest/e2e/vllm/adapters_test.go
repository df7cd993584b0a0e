package vllm

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-gateway/tandem/loadtest/e2e/process"
)

// running is how many requests an engine of TestAdapters computes at once, so that others wait.
const running = 2

// TestAdapters: a pair that has LoRA adapters, one at a time, and schedules by priority.
func TestAdapters(t *testing.T) {
	args := append(allRequests(t), "--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", "8",
		"--scheduling-policy", "priority", "--max-num-seqs", strconv.Itoa(running))
	p, d := pairOf(t, nil, nil, args...)
	vllm := filepath.Join(process.Root(t), ".cache", "vllm")
	adapters := fmt.Sprintf("adapter: [%q, %q]", "first="+filepath.Join(vllm, "adapter-first"), "second="+filepath.Join(vllm, "adapter-second"))
	g := gatewayOf(t, p, d, adapters)
	t.Run("answers with adapters", func(t *testing.T) { adaptersAnswer(t, g, p, d) })
	t.Run("KV of one adapter is none of the other", func(t *testing.T) { adaptersKeepKV(t, g) })
	t.Run("priority", func(t *testing.T) { prioritiesOrder(t, p, d) })
	t.Run("load in headers", func(t *testing.T) { headersAreMetrics(t, p) })
}

// adaptersAnswer: the gateway loads adapters where it sends their requests, and what comes through a pair is what
// one engine says with the adapter, and not what it says without.
func adaptersAnswer(t *testing.T, g gateway, p, d *engine) {
	equal, asked, pairs := 0, 0, 0
	for _, adapter := range []string{"first", "second"} {
		for i, r := range requests() {
			if r.name != "text" && r.name != "token ids" {
				continue
			}
			answer := func(url, salt, model string) (any, bool) {
				body := r.with(uint64(90_000+i), salt)
				body["model"] = model
				said, byPair, err := r.answerOf(url, body)
				if err != nil {
					t.Fatalf("%s with %s: %v", r, model, err)
				}
				return said, byPair
			}
			got, byPair := answer(g.url, "", adapter)
			want, _ := answer(d.url, "truth", adapter)
			without, _ := answer(d.url, "without "+adapter, model)
			if asked++; byPair {
				pairs++
			}
			switch {
			case !alike(got, want):
				t.Errorf("%s with %s:\n%s\none engine:\n%s", r, adapter, compact(got), compact(want))
			case strings.ReplaceAll(compact(want), `"model":"`+adapter+`"`, `"model":"`+model+`"`) == compact(without):
				t.Errorf("%s: %s says what the model says without it", r, adapter)
			default:
				equal++
			}
		}
	}
	loaded := map[string]float64{}
	for _, e := range []*engine{p, d} {
		loaded[e.host()] = metric(t, g.admin, "tandem_adapter_loads_total", `server="`+e.host()+`"`, `outcome="loaded"`)
		if loaded[e.host()] != 2 {
			t.Errorf("%s loaded %v adapters", e.host(), loaded[e.host()])
		}
	}
	t.Logf("%d of %d answers are those of one engine with the adapter, %d by pairs; loaded on demand: %v", equal, asked, pairs, loaded)
	if pairs < asked*3/4 {
		t.Error("too few by pairs")
	}
}

// adaptersKeepKV: a prompt is cached for the adapter that it came with, and believed to be for no other.
func adaptersKeepKV(t *testing.T, g gateway) {
	hits := func() float64 { return metric(t, g.admin, "tandem_kv_hit_tokens_total") }
	said := text(95_000, 500)
	cached := func(adapter string) (tokens int, believed float64) {
		before := hits()
		var a struct {
			Usage usage `json:"usage"`
		}
		post(t, g.url+"/v1/completions", map[string]any{"model": adapter, "prompt": said, "max_tokens": 4, "temperature": 0}, &a)
		return a.Usage.Details.Cached, hits() - before
	}
	cached("first")
	process.WaitFor(t, g.process, "the prompt to be known of", process.ReadyWithin, func() error {
		if tokens, believed := cached("first"); tokens < 300 || believed < 300 {
			return fmt.Errorf("%d tokens are cached, %v believed to be", tokens, believed)
		}
		return nil
	})
	if tokens, believed := cached("second"); tokens != 0 || believed != 0 {
		t.Errorf("with the other adapter %d tokens are cached, %v believed to be", tokens, believed)
	}
}

// runs reports an error until an engine has so many requests in its batch and in its queue.
func runs(t *testing.T, e *engine, batch, queue float64) error {
	t.Helper()
	running, waiting := metric(t, e.url, "vllm:num_requests_running"), metric(t, e.url, "vllm:num_requests_waiting")
	if running != batch || waiting != queue {
		return fmt.Errorf("%v run and %v wait, not %v and %v", running, waiting, batch, queue)
	}
	return nil
}

// prioritiesOrder: decode is full, a long prompt comes and short ones after it. With engine-priority short ones
// pass it in the engine's own queue; without, the engine serves in the order of arrival. What a client
// itself says of its priority does not reach the engine.
func prioritiesOrder(t *testing.T, p, d *engine) {
	for _, by := range []bool{true, false} {
		g := startGateway(t, []*engine{p}, []*engine{d}, "binding: arrival", "pairs-first: true", fmt.Sprintf("engine-priority: %v", by))
		process.WaitFor(t, g.process, "the gateway to see both", process.ReadyWithin, process.SeesUp(g.admin, 2))
		seed := uint64(100_000)
		if by {
			seed += 100
		}
		for i := range 3 { // so that it knows how long prompts take
			ask(t, g.url, map[string]any{"prompt": text(seed+50+uint64(i), 4000), "max_tokens": 2})
		}
		var mu sync.Mutex // guards ended
		var ended []string
		var all sync.WaitGroup
		send := func(name, url string, body map[string]any) {
			all.Go(func() {
				if _, err := tryAsk(url, body, nil); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, name)
			})
		}
		for i := range running {
			send("before", d.url, map[string]any{"prompt": text(seed+uint64(i), 20), "max_tokens": 600, "ignore_eos": true})
		}
		process.WaitFor(t, d.process, "decode to be full", process.ReadyWithin, func() error { return runs(t, d, running, 0) })
		answer := func(seed uint64, words int) map[string]any {
			return map[string]any{"prompt": text(seed, words), "max_tokens": 40, "ignore_eos": true, "priority": -1}
		}
		send("long", g.url, answer(seed+10, 4000))
		process.WaitFor(t, d.process, "the long prompt to wait", process.ReadyWithin, func() error { return runs(t, d, running, 1) })
		for i := range 3 {
			send("short", g.url, answer(seed+20+uint64(i), 30))
		}
		process.WaitFor(t, d.process, "all to wait", process.ReadyWithin, func() error { return runs(t, d, running, 4) })
		all.Wait()
		after := slices.Index(slices.DeleteFunc(ended, func(name string) bool { return name == "before" }), "long")
		t.Logf("engine-priority %v: the long prompt, which came first, ended after %d of 3 short ones", by, after)
		if passed := after >= 2; passed != by {
			t.Error("not in this order")
		}
	}
}

// headersAreMetrics: what vLLM reports of its load in an answer's header, in both formats, is what it
// has on its page of metrics. Prefill keeps the blocks of a hand-off that nobody fetches for some time, so that
// there is something to report. The header may be of the step before the page, with the answer's own block.
func headersAreMetrics(t *testing.T, p *engine) {
	post(t, p.url+"/v1/completions", map[string]any{"model": model, "prompt": text(110_000, 3000), "max_tokens": 1,
		"kv_transfer_params": map[string]any{"do_remote_decode": true, "do_remote_prefill": false}}, &struct{}{})
	for _, format := range []string{"TEXT", "JSON"} {
		process.WaitFor(t, p.process, "a header of "+format+" that is the page", process.ReadyWithin, func() error {
			header := reportOf(t, p, format)
			got := readingsOf(t, header)
			for _, name := range []string{"kv_cache_usage_perc", "num_requests_waiting"} {
				if want := metric(t, p.url, "vllm:"+name); got[name] != want || want == 0 && name == "kv_cache_usage_perc" {
					return fmt.Errorf("%q, and %s is %v on the page", header, name, want)
				}
			}
			t.Log(header)
			return nil
		})
	}
}

// reportOf is the load that an engine reports with an answer.
func reportOf(t *testing.T, e *engine, format string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.url+"/v1/completions", strings.NewReader(`{"model":"`+model+`","prompt":"a","max_tokens":2}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("endpoint-load-metrics-format", format)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	return resp.Header.Get("endpoint-load-metrics")
}

// readingsOf are the numbers in a report of load.
func readingsOf(t *testing.T, header string) map[string]float64 {
	t.Helper()
	if body, is := strings.CutPrefix(header, "JSON "); is {
		var report struct {
			Readings map[string]float64 `json:"named_metrics"`
		}
		if err := json.Unmarshal([]byte(body), &report); err != nil {
			t.Fatalf("%v in %q", err, header)
		}
		return report.Readings
	}
	readings := map[string]float64{}
	for pair := range strings.SplitSeq(strings.TrimPrefix(header, "TEXT "), ", ") {
		name, value, _ := strings.Cut(strings.TrimPrefix(pair, "named_metrics."), "=")
		v, err := strconv.ParseFloat(value, 64)
		if _, twice := readings[name]; err != nil || twice {
			t.Fatalf("%q in %q: %v", pair, header, err)
		}
		readings[name] = v
	}
	return readings
}
