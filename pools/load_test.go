package pools

import "testing"

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

func TestParseLoad(t *testing.T) {
	one := 1
	known := func(v float64) Gauge { return Gauge{v, true} }
	for _, c := range []struct {
		name, exposition string
		rank             *int
		want             Load
	}{
		{"all ranks", vllmExposition, nil, Load{Running: known(7), Waiting: known(1), KVUsed: known(.75), KVTokens: known(32000)}},
		{"one rank", vllmExposition, &one, Load{Running: known(4), Waiting: known(0), KVUsed: known(.75), KVTokens: known(16000)}},
		{"old name", "vllm:gpu_cache_usage_perc 0.5\n", nil, Load{KVUsed: known(.5)}},
		{"stats off", "python_info{version=\"3\"} 1\n", nil, Load{}},
		{"empty", "", nil, Load{}},
		{"NaN and infinity", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -1\n", nil, Load{}},
	} {
		got, err := parseLoad([]byte(c.exposition), c.rank)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	if _, err := parseLoad([]byte("<html>not metrics</html>"), nil); err == nil {
		t.Error("HTML passed for metrics")
	}
}

// A malformed exposition made the parser panic, in the goroutine that probes: the
// process would have ended.
func TestParseLoad_AMalformedExpositionDoesNotPanic(t *testing.T) {
	if _, err := parseLoad([]byte("#HELP A000000000000000000000000 0\n{}"), nil); err == nil {
		t.Error("it passed for metrics")
	}
}

func FuzzParseLoad(f *testing.F) {
	f.Add([]byte(vllmExposition))
	f.Add([]byte("#HELP A000000000000000000000000 0\n{}"))
	f.Add([]byte("vllm:cache_config_info{block_size=\"1e308\",num_gpu_blocks=\"1e308\"} 1\n"))
	f.Fuzz(func(t *testing.T, exposition []byte) {
		l, err := parseLoad(exposition, nil)
		if err != nil {
			return
		}
		for _, g := range []Gauge{l.Running, l.Waiting, l.KVUsed, l.KVTokens} {
			if !g.Known && g.Value != 0 || g.Value < 0 || g.Value != g.Value {
				t.Fatalf("unusable reading %+v", l)
			}
		}
	})
}
