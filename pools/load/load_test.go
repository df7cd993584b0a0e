package load

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-gateway/tandem/pools/curve"
)

const vllmExposition = `# HELP vllm:num_requests_running x
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 4
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="1",model_name="m"} 0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000"} 1
`

// What decode engines of vLLM 0.32 show of KV that they got from others: the middle of three requests had two
// tokens more than whole blocks of 16.
const vllmMoved = `# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 0
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 3.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 640.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 2002.0
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0"} 9999.0
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_sum{engine="0"} 4.644864e+06
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf"} 3.0
vllm:nixl_bytes_transferred_count{engine="0"} 3.0
`

// Two data-parallel ranks of two tensor-parallel ranks each, which tell the same.
const sglangExposition = `# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="prefill",model_name="m",tp_rank="0"} 3
sglang:num_running_reqs{dp_rank="0",engine_type="prefill",model_name="m",tp_rank="1"} 3
sglang:num_running_reqs{dp_rank="1",engine_type="prefill",model_name="m",tp_rank="2"} 5
sglang:num_running_reqs{dp_rank="1",engine_type="prefill",model_name="m",tp_rank="3"} 5
sglang:num_queue_reqs{dp_rank="0",tp_rank="0"} 2
sglang:num_queue_reqs{dp_rank="1",tp_rank="2"} 1
sglang:num_used_tokens{dp_rank="0",tp_rank="0"} 700
sglang:num_used_tokens{dp_rank="1",tp_rank="2"} 900
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.7
sglang:token_usage{dp_rank="1",tp_rank="2"} 0.9
sglang:max_total_num_tokens{dp_rank="0",tp_rank="0"} 1000
sglang:max_total_num_tokens{dp_rank="1",tp_rank="2"} 1000
`

const tritonExposition = `# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6239
`

const trtllmExposition = `trtllm_num_requests_running{model_name="m"} 4
trtllm_num_requests_waiting{model_name="m"} 3
trtllm_kv_cache_utilization{model_name="m"} 0.62
trtllm_kv_cache_tokens_per_block{model_name="m"} 32
trtllm_kv_cache_max_blocks{model_name="m"} 100
# TYPE trtllm_request_prefill_time_seconds histogram
trtllm_request_prefill_time_seconds_bucket{model_name="m",le="+Inf"} 5
trtllm_request_prefill_time_seconds_sum{model_name="m"} 0.5
trtllm_request_prefill_time_seconds_count{model_name="m"} 5
`

func known(v float64) Gauge { return Gauge{v, true} }

func TestParseMetrics(t *testing.T) {
	zero, one := 0, 1
	for _, c := range []struct {
		name, exposition string
		rank             *int
		want             Load
	}{
		{"vLLM, all ranks", vllmExposition, nil, Load{Engine: "vllm", Running: known(7), Waiting: known(1), KVUsed: known(.75), KVTokens: known(32000), BlockTokens: known(16)}},
		{"vLLM, one rank", vllmExposition, &one, Load{Engine: "vllm", Running: known(4), Waiting: known(0), KVUsed: known(.75), KVTokens: known(16000), BlockTokens: known(16)}},
		{"vLLM's old name", "vllm:gpu_cache_usage_perc 0.5\n", nil, Load{Engine: "vllm", KVUsed: known(.5)}},
		{"both names, the newer counts", "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n", nil, Load{Engine: "vllm", KVUsed: known(.25)}},
		{"vLLM in Ray", "vllm_num_requests_running{engine=\"0\"} 2\n", nil, Load{Engine: "vllm", Running: known(2)}},
		{"tokens", "vllm:num_tokens_running 900\nvllm:num_tokens_waiting 4000\n", nil, Load{Engine: "vllm", RunningTokens: known(900), WaitingTokens: known(4000)}},
		{"KV that moved", vllmMoved, nil, Load{Engine: "vllm", Running: known(0), TokenBytes: known(4644864. / 2002)}},
		{"what prefills took", "vllm:num_requests_running 0\n# TYPE vllm:request_prefill_time_seconds histogram\n" +
			"vllm:request_prefill_time_seconds_bucket{engine=\"0\",le=\"+Inf\"} 7\nvllm:request_prefill_time_seconds_sum{engine=\"0\"} 0.5\nvllm:request_prefill_time_seconds_count{engine=\"0\"} 7\n" +
			"vllm:request_prefill_time_seconds_sum{engine=\"1\"} 0.25\nvllm:request_prefill_time_seconds_count{engine=\"1\"} 2\n", nil,
			Load{Engine: "vllm", Running: known(0), Prefills: known(9), PrefillSeconds: known(.75)}},
		{"KV of two connectors", vllmMoved + "vllm:kv_offload_load_bytes_total{engine=\"0\"} 2002\n", nil,
			Load{Engine: "vllm", Running: known(0), TokenBytes: known(4646866. / 2002)}},
		{"room that groups of layers share", "vllm:num_requests_running 0\n" +
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\",kv_cache_size_tokens=\"6000\",num_gpu_blocks=\"1000\"} 1\n" +
			"vllm:cache_config_info{block_size=\"16\",engine=\"1\",kv_cache_size_tokens=\"6000\",num_gpu_blocks=\"1000\"} 1\n", nil,
			Load{Engine: "vllm", Running: known(0), KVTokens: known(12000), BlockTokens: known(16)}},
		{"room that the engine has not counted", "vllm:num_requests_running 0\n" +
			"vllm:cache_config_info{block_size=\"16\",engine=\"0\",kv_cache_size_tokens=\"None\",num_gpu_blocks=\"1000\"} 1\n", nil,
			Load{Engine: "vllm", Running: known(0), KVTokens: known(16000), BlockTokens: known(16)}},
		{"too little KV that moved", strings.Replace(vllmMoved, " 2002.0", " 999.0", 1), nil, Load{Engine: "vllm", Running: known(0)}},
		{"KV that moved by another connector", strings.Replace(vllmMoved, "nixl_bytes", "other_bytes", 3), nil, Load{Engine: "vllm", Running: known(0)}},
		{"KV that moved, of an older vLLM", strings.ReplaceAll(vllmMoved, "_by_source", "_by"), nil, Load{Engine: "vllm", Running: known(0), TokenBytes: known(4644864. / 9999)}},
		{"SGLang, all ranks", sglangExposition, nil, Load{Engine: "sglang", Running: known(8), Waiting: known(3), RunningTokens: known(1600), KVUsed: known(.9), KVTokens: known(2000)}},
		{"SGLang, one rank", sglangExposition, &zero, Load{Engine: "sglang", Running: known(3), Waiting: known(2), RunningTokens: known(700), KVUsed: known(.7), KVTokens: known(1000)}},
		{"Triton", tritonExposition, nil, Load{Engine: "triton", Running: known(6), Waiting: known(2), KVUsed: known(.5), KVTokens: known(64 * 6239), BlockTokens: known(64)}},
		{"TensorRT-LLM", trtllmExposition, nil, Load{Engine: "trtllm", Running: known(4), Waiting: known(3), KVUsed: known(.62), KVTokens: known(3200), BlockTokens: known(32), Prefills: known(5), PrefillSeconds: known(.5)}},
		{"statistics off", "python_info{version=\"3\"} 1\n", nil, Load{}},
		{"empty", "", nil, Load{}},
		{"NaN and infinity", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -1\n", nil, Load{}},
	} {
		got, err := parseMetrics([]byte(c.exposition), DefaultTables(), c.rank)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	if _, err := parseMetrics([]byte("<html>not metrics</html>"), DefaultTables(), nil); err == nil {
		t.Error("HTML passed for metrics")
	}
}

func TestLoadTables_NamesCanBeOverridden(t *testing.T) {
	tables, err := ParseTables([]string{
		"vllm.waiting=fork:queue{kind=all}", "mine.running=busy", "mine.block_tokens=info[size]", "mine.blocks=info[num]",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		exposition string
		want       Load
	}{
		{"vllm:num_requests_waiting 3\nfork:queue{kind=\"all\"} 9\nfork:queue{kind=\"some\"} 1\n", Load{Engine: "vllm", Waiting: known(9)}},
		{"vllm:num_requests_waiting 3\n", Load{Engine: "vllm", Waiting: known(3)}}, // an engine without it
		{"busy 2\ninfo{size=\"8\",num=\"10\"} 1\n", Load{Engine: "mine", Running: known(2), BlockTokens: known(8), KVTokens: known(80)}},
	} {
		if got, err := parseMetrics([]byte(c.exposition), tables, nil); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v; want %+v", c.exposition, got, err, c.want)
		}
	}
	for _, bad := range []string{"vllm.waiting", "waiting=x", "vllm.speed=x", "vllm.waiting=", "vllm.waiting=a{b", "vllm.waiting=a{b}", "vllm.waiting=a[", "vllm.waiting=a b"} {
		if _, err := ParseTables([]string{bad}); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func TestParseSGLangLoads(t *testing.T) {
	const two = `{"timestamp":"2026-08-06T09:15:23Z","version":"0.5.21","loads":[
		{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":2,"num_waiting_uncached_tokens":1500,"num_used_tokens":700,"num_total_tokens":2300,"max_total_num_tokens":1000,"token_usage":0.7,"cache_hit_rate":0.1},
		{"dp_rank":1,"num_running_reqs":5,"num_waiting_reqs":0,"num_waiting_uncached_tokens":0,"num_used_tokens":900,"max_total_num_tokens":1000,"token_usage":0.9}]}`
	one := 1
	for _, c := range []struct {
		name, body string
		rank       *int
		want       Load
		err        string
	}{
		{"all ranks", two, nil, Load{Engine: "sglang", Running: known(8), Waiting: known(2), WaitingTokens: known(1500), RunningTokens: known(1600), KVUsed: known(.9), KVTokens: known(2000)}, ""},
		{"one rank", two, &one, Load{Engine: "sglang", Running: known(5), Waiting: known(0), WaitingTokens: known(0), RunningTokens: known(900), KVUsed: known(.9), KVTokens: known(1000)}, ""},
		{"older, without tokens", `{"loads":[{"dp_rank":0,"num_running_reqs":1,"max_total_num_tokens":10}]}`, nil, Load{Engine: "sglang", Running: known(1), KVTokens: known(10)}, ""},
		{"not ready", `{"loads":[{"dp_rank":0,"num_running_reqs":0,"max_total_num_tokens":0}]}`, nil, Load{}, "no rank"},
		{"its collection is broken", `{"loads":[]}`, nil, Load{}, "no rank"},
		{"another engine", `{"detail":"Not Found"}`, nil, Load{}, "no rank"},
		{"no JSON", `sglang:num_running_reqs 1`, nil, Load{}, "no list"},
		{"out of range", `{"loads":[{"num_running_reqs":1e999,"max_total_num_tokens":10}]}`, nil, Load{}, "no list"},
	} {
		got, err := parseSGLangLoads([]byte(c.body), c.rank)
		if failed := err != nil; failed != (c.err != "") || failed && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		} else if !failed && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestParseMetrics_TheNewestAdapterSampleWins(t *testing.T) {
	const text = `vllm:num_requests_running 1
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="b,a, a",waiting_lora_adapters="c"} 3.5
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 2.5
`
	l, err := parseMetrics([]byte(text), DefaultTables(), nil)
	want := Adapters{Max: 4, Running: []string{"a", "b"}, Waiting: []string{"c"}, Known: true}
	if err != nil || !reflect.DeepEqual(l.Adapters, want) {
		t.Errorf("%+v, %v; want %+v", l.Adapters, err, want)
	}
}

// Adapters are read from the series that is configured, and from vLLM's where that is not there.
func TestParseTables_TheSeriesOfAdaptersHasAnotherName(t *testing.T) {
	tables, err := ParseTables([]string{"vllm.adapters=my_loras{kind=lora}"})
	if err != nil {
		t.Fatal(err)
	}
	const running, usual = "vllm:num_requests_running 1\n", `vllm:lora_requests_info{max_lora="2",running_lora_adapters="usual",waiting_lora_adapters=""} 9` + "\n"
	const own = `my_loras{kind="other",max_lora="8",running_lora_adapters="x",waiting_lora_adapters=""} 7
my_loras{kind="lora",max_lora="4",running_lora_adapters="a",waiting_lora_adapters="b"} 3
`
	for text, want := range map[string]Adapters{
		running + usual + own: {Max: 4, Running: []string{"a"}, Waiting: []string{"b"}, Known: true},
		running + usual:       {Max: 2, Running: []string{"usual"}, Known: true},
		running:               {},
	} {
		l, err := parseMetrics([]byte(text), tables, nil)
		if err != nil || !reflect.DeepEqual(l.Adapters, want) {
			t.Errorf("%s\n%+v, %v; want %+v", text, l.Adapters, err, want)
		}
	}
}

// A malformed exposition made the parser panic, in the goroutine that probes: the
// process would have ended.
func TestParseMetrics_AMalformedExpositionDoesNotPanic(t *testing.T) {
	if _, err := parseMetrics([]byte("#HELP A000000000000000000000000 0\n{}"), DefaultTables(), nil); err == nil {
		t.Error("it passed for metrics")
	}
}

func TestLoad_NewerReadingsFillUpFromOlderOnes(t *testing.T) {
	start := time.Now()
	scraped := Load{Engine: "vllm", Running: known(3), Waiting: known(1), KVUsed: known(.5), At: start}
	reported := Load{Waiting: known(8), KVUsed: known(.9), At: start.Add(time.Second)}
	want := Load{Engine: "vllm", Running: known(3), Waiting: known(8), KVUsed: known(.9), At: reported.At}
	if got := reported.FilledFrom(scraped, 3*time.Second); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	reported.At = start.Add(4 * time.Second)
	if got := reported.FilledFrom(scraped, 3*time.Second); got.Running.Known {
		t.Error("an old scrape was believed")
	}
}

func TestLoad_BesideWhatTheGatewaysSent(t *testing.T) {
	type sent struct{ requests, tokens int }
	own := sent{2, 3000}
	for _, c := range []struct {
		name string
		load Load
		own  sent
		want Gauge
	}{
		{"nothing known", Load{}, own, Gauge{}},
		{"tokens count, not requests", Load{Waiting: known(50), WaitingTokens: known(5000)}, own, known(2000)},
		{"all ours", Load{WaitingTokens: known(2500)}, own, known(0)},
		{"requests of our own length", Load{Waiting: known(5)}, own, known(4500)},
		{"requests of an assumed length", Load{Waiting: known(2)}, sent{}, known(2 * assumedPrompt)},
	} {
		if got := c.load.Beside(c.own.requests, c.own.tokens); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestLoad_ExternalQueueDrains(t *testing.T) {
	now := time.Now()
	perToken := curve.Curve{0, 1, 0} // a millisecond a token, by the features' unit of thousands
	l := Load{External: known(2000), At: now}
	whole := l.ExternalQueue(perToken, now)
	if whole <= 0 {
		t.Fatalf("2000 tokens wait for %v", whole)
	}
	if got := l.ExternalQueue(perToken, now.Add(whole/2)); got != whole-whole/2 {
		t.Errorf("half way it is %v of %v", got, whole)
	}
	if got := l.ExternalQueue(perToken, now.Add(2*whole)); got != 0 {
		t.Errorf("at the end it is %v", got)
	}
}

// Prompts that are computed in one step take what it costs whatever is in it once.
func TestLoad_ExternalPromptsShareSteps(t *testing.T) {
	now := time.Now()
	perStep := curve.Curve{1, 0, 0}
	for tokens, want := range map[float64]time.Duration{1: time.Second, 1024: time.Second, 8192: time.Second, 8193: 2 * time.Second} {
		if got := (Load{External: known(tokens), At: now}).ExternalQueue(perStep, now); got != want {
			t.Errorf("%v tokens wait for %v, want %v", tokens, got, want)
		}
	}
}

// pagesOf stands for an engine's HTTP server: the body of each URL.
func pagesOf(pages map[string]string, asked *[]string) Get {
	return func(_ context.Context, url string, into *bytes.Buffer) error {
		*asked = append(*asked, url)
		if body, ok := pages[url]; ok {
			into.WriteString(body)
			return nil
		}
		return fmt.Errorf("%s answered 404", url)
	}
}

// parseMetrics reads a whole exposition.
func parseMetrics(exposition []byte, tables []Table, rank *int) (Load, error) {
	p := page{tables: tables, families: newFamilySet(namesIn(tables))}
	return p.parse(p.appendRelevant(nil, exposition), rank)
}

// A page that says the same as before is not read again, one that says anything else is.
func TestScraper_ReadsWhatHasChanged(t *testing.T) {
	const url = "/metrics"
	pages := map[string]string{url: vllmExposition}
	var asked []string
	s, get := NewScraper("", nil, NewPages(DefaultTables())), pagesOf(pages, &asked)
	scrape := func() Load {
		t.Helper()
		load, ok := s.Scrape(t.Context(), get)
		if !ok {
			t.Fatal("no load")
		}
		return load
	}
	first := scrape()
	pages[url] = "other{le=\"1\"} 5\n" + vllmExposition
	second := scrape()
	if !second.At.After(first.At) || !second.Adapters.Asked.After(first.Adapters.Asked) {
		t.Errorf("the same load is as old as before: %v, %v", first.At, second.At)
	}
	if second.At, second.Adapters.Asked = first.At, first.Adapters.Asked; !reflect.DeepEqual(first, second) {
		t.Errorf("%+v, then %+v", first, second)
	}
	pages[url] = strings.Replace(vllmExposition, `{engine="0",model_name="m"} 3`, `{engine="0",model_name="m"} 5`, 1)
	if third := scrape(); third.Running.Value != first.Running.Value+2 {
		t.Errorf("two more run: %+v, then %+v", first, third)
	}
	pages[url] = "other{le=\"1\"} 5\n"
	if load, ok := s.Scrape(t.Context(), get); ok {
		t.Errorf("nothing is said any more, and the load is %+v", load)
	}
	pages[url] = vllmExposition
	scrape()
	pages[url] = "vllm:num_requests_running{ 5\n"
	if load, ok := s.Scrape(t.Context(), get); ok {
		t.Errorf("a page that cannot be read: %+v", load)
	}
}

func TestScraper_FindsThePageAndStaysWithIt(t *testing.T) {
	for _, c := range []struct {
		name    string
		metrics string
		pages   map[string]string
		want    string
	}{
		{"vLLM", "", map[string]string{"/metrics": vllmExposition}, "vllm"},
		{"TensorRT-LLM, whose /metrics is JSON", "", map[string]string{"/metrics": "[]", "/prometheus/metrics": trtllmExposition}, "trtllm"},
		{"SGLang counts tokens in its own list", "", map[string]string{"/metrics": sglangExposition, "/v1/loads": `{"loads":[{"num_waiting_uncached_tokens":5,"max_total_num_tokens":9}]}`}, "sglang"},
		{"elsewhere", "http://e:8002/metrics", map[string]string{"http://e:8002/metrics": tritonExposition}, "triton"},
	} {
		var asked []string
		s, get := NewScraper(c.metrics, nil, NewPages(DefaultTables())), pagesOf(c.pages, &asked)
		load, ok := s.Scrape(t.Context(), get)
		if !ok || load.Engine != c.want || load.At.IsZero() {
			t.Errorf("%s: %+v, %v", c.name, load, ok)
			continue
		}
		if c.want == "sglang" && !load.WaitingTokens.Known {
			t.Errorf("%s: %+v", c.name, load)
		}
		asked = nil
		if _, ok := s.Scrape(t.Context(), get); !ok || len(asked) != 1 {
			t.Errorf("%s: the second time it asked %v", c.name, asked)
		}
	}
	var asked []string
	if load, ok := NewScraper("", nil, NewPages(DefaultTables())).Scrape(t.Context(), pagesOf(nil, &asked)); ok {
		t.Errorf("nothing answers, and the load is %+v", load)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(vllmExposition))
	f.Add([]byte(sglangExposition))
	f.Add([]byte(tritonExposition))
	f.Add([]byte("#HELP A000000000000000000000000 0\n{}"))
	f.Add([]byte("vllm:cache_config_info{block_size=\"1e308\",num_gpu_blocks=\"1e308\"} 1\nvllm:num_requests_running 1\n"))
	f.Add([]byte(`{"loads":[{"dp_rank":0,"num_running_reqs":3,"max_total_num_tokens":10}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []func() (Load, error){
			func() (Load, error) { return parseMetrics(body, DefaultTables(), nil) },
			func() (Load, error) { return parseSGLangLoads(body, nil) },
		} {
			l, err := parse()
			if err != nil {
				continue
			}
			for name, v := range l.Readings() {
				if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
					t.Fatalf("%s is unusable: %+v", name, l)
				}
			}
		}
	})
}

// An older load fills in what a newer one lacks, each figure by itself, if it is not too old.
func TestLoad_FilledFromWhatIsNotTooOld(t *testing.T) {
	now := time.Now()
	ada, eve := Adapters{Known: true, Running: []string{"ada"}}, Adapters{Known: true, Running: []string{"eve"}}
	older := Load{Engine: "vllm", Running: known(1), Waiting: known(2), RunningTokens: known(3), WaitingTokens: known(4), KVUsed: known(.5), KVTokens: known(6), BlockTokens: known(7), External: known(8), Adapters: ada, At: now}
	for name, c := range map[string]struct {
		newer, want Load
		older       Load
	}{
		"nothing known": {Load{At: now.Add(time.Second)}, func() Load { l := older; l.At = now.Add(time.Second); return l }(), older},
		"all known": {Load{Engine: "mine", Running: known(9), Waiting: known(9), RunningTokens: known(9), WaitingTokens: known(9), KVUsed: known(.9), KVTokens: known(9), BlockTokens: known(9), External: known(9), Adapters: eve, At: now},
			Load{Engine: "mine", Running: known(9), Waiting: known(9), RunningTokens: known(9), WaitingTokens: known(9), KVUsed: known(.9), KVTokens: known(9), BlockTokens: known(9), External: known(9), Adapters: eve, At: now}, older},
		"just not too old": {Load{At: now.Add(time.Minute)}, func() Load { l := older; l.At = now.Add(time.Minute); return l }(), older},
		"too old":          {Load{At: now.Add(time.Minute + 1)}, Load{At: now.Add(time.Minute + 1)}, older},
		"never read":       {Load{At: now}, Load{At: now}, Load{Running: known(1)}},
	} {
		if got := c.newer.FilledFrom(c.older, time.Minute); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// The configuration of the KV cache is in labels; what cannot be read says nothing.
func TestParseKVCache(t *testing.T) {
	for text, want := range map[string][2]string{
		`vllm:cache_config_info{block_size="32",cache_dtype="fp8"} 1` + "\n": {"32", "fp8"},
		`vllm_cache_config_info{block_size="16"} 1` + "\n":                   {"16", ""},
		"vllm:num_requests_running 7\n":                                      {}, "": {},
		`vllm:cache_config_info{block_size="32"} 1` + "\n" + `broken{` + "\n": {},
	} {
		if block, kind := ParseKVCache([]byte(text)); block != want[0] || kind != want[1] {
			t.Errorf("%q: %q, %q", text, block, kind)
		}
	}
}

// A reading that a label holds is unknown where the label has no number.
func TestSeries_AValueInALabel(t *testing.T) {
	series, err := ParseSeries("info[slots]")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]Gauge{
		`info{slots="12"} 1`: known(12), `info{slots="many"} 1`: {}, `info{slots="-1"} 1`: {}, `info{slots="Inf"} 1`: {}, `info{other="12"} 1`: {},
	} {
		families, err := parseExposition([]byte(text + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := series.read(families, nil, math.Max); got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

// However many adapters an engine lists, what requests look at is bounded.
func TestParseAdapters_AreBounded(t *testing.T) {
	list := func(from int) string {
		names := make([]string, 5*maxNames)
		for i := range names {
			names[i] = fmt.Sprint("adapter-", from+i)
		}
		return strings.Join(names, ",")
	}
	text := fmt.Sprintf("vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=%q,waiting_lora_adapters=%q} 1\n", list(0), list(5*maxNames))
	families, err := parseExposition([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	a := parseAdapters(families, DefaultTables()[0].Series[AdapterNames])
	if len(a.Running) != maxNames || len(a.Waiting) != maxNames || a.WithoutPlace() != maxNames {
		t.Errorf("%d run, %d wait, for %d no place is left", len(a.Running), len(a.Waiting), a.WithoutPlace())
	}
}
