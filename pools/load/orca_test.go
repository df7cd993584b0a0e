package load

import (
	"encoding/base64"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"

	orca "github.com/cncf/xds/go/xds/data/orca/v3"
	"google.golang.org/protobuf/proto"
)

func orcaBinary(t testing.TB) string {
	raw, err := proto.Marshal(&orca.OrcaLoadReport{NamedMetrics: map[string]float64{"kv_cache_usage_perc": .4, "num_requests_waiting": 3}})
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func TestParseORCA(t *testing.T) {
	both := map[Reading]float64{KVUsed: .4, Waiting: 3}
	for _, c := range []struct {
		name, header string
		want         map[Reading]float64 // nil: an error
	}{
		{"vLLM's text", "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0", both},
		{"colons, no prefixes", "TEXT kv_cache_usage_perc:0.4,num_requests_waiting:3", both},
		{"no format", "named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3", both},
		{"vLLM's JSON", `JSON {"named_metrics":{"kv_cache_usage_perc":0.4,"num_requests_waiting":3.0}}`, both},
		{"JSON as protobuf writes it, and more", `JSON {"namedMetrics":{"kv_cache_usage_perc":0.4,"num_requests_waiting":3},"cpuUtilization":0.5,"new":1}`, both},
		{"JSON without a format", `{"utilization":{"kv_cache_usage_perc":0.4},"named_metrics":{"num_requests_waiting":3}}`, both},
		{"binary", "BIN " + orcaBinary(t), both},
		{"binary without padding", "BIN " + strings.TrimRight(orcaBinary(t), "="), both},
		{"Triton", "TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=399296", map[Reading]float64{KVUsed: .25, KVTokens: 399296}},
		{"tokens", "TEXT num_tokens_waiting=900, num_tokens_running=50, num_requests_running=2", map[Reading]float64{WaitingTokens: 900, RunningTokens: 50, Running: 2}},
		{"nothing that we read", "TEXT cpu_utilization=0.3, rps_fractional=10", map[Reading]float64{}},
		{"NaN and infinity are unknown", "TEXT kv_cache_usage_perc=NaN, num_requests_waiting=Inf", map[Reading]float64{}},
		{"vLLM's text of two ranks", "TEXT named_metrics.num_requests_waiting=1.0, named_metrics.num_requests_waiting=2.0, named_metrics.kv_cache_usage_perc=0.4, named_metrics.kv_cache_usage_perc=0.1", both},
		{"what we do not read twice", "TEXT custom=1, custom=2", nil},
		{"a field twice", "TEXT eps=1, eps=2", nil},
		{"twice in JSON", `JSON {"named_metrics":{"a":1,"a":2}}`, nil},
		{"no number", "TEXT num_requests_waiting=many", nil},
		{"no pair", "TEXT load", nil},
		{"broken JSON", `JSON {"named_metrics":`, nil},
		{"broken base64", "BIN !!!", nil},
		{"broken protobuf", "BIN " + base64.StdEncoding.EncodeToString([]byte{0xff, 0xff}), nil},
		{"too long", "TEXT a=" + strings.Repeat("1", maxORCA), nil},
		{"empty", "", nil},
	} {
		report, err := ParseORCA(c.header)
		if failed := err != nil; failed != (c.want == nil) {
			t.Errorf("%s: error %v", c.name, err)
			continue
		}
		if load, _ := FromORCA(report); c.want != nil && !maps.Equal(load.Readings(), c.want) {
			t.Errorf("%s: %v, want %v", c.name, load.Readings(), c.want)
		}
	}
}

func FuzzParseORCA(f *testing.F) {
	f.Add("TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0")
	f.Add(`JSON {"named_metrics":{"kv_cache_usage_perc":0.4,"num_requests_waiting":3.0}}`)
	f.Add("BIN " + orcaBinary(f))
	f.Add("TEXT kv_cache_usage_perc:-0.0,num_tokens_waiting=1e309")
	f.Fuzz(func(t *testing.T, header string) {
		report, err := ParseORCA(header)
		if err != nil {
			return
		}
		load, _ := FromORCA(report)
		for name, v := range load.Readings() {
			if v < 0 || math.IsNaN(v) || math.IsInf(v, 0) {
				t.Fatalf("%s is unusable in %q: %v", name, header, v)
			}
		}
	})
}

// A report comes in one of two headers, of which the plain one counts first.
func TestORCAOf_WhereAnAnswerCarriesIt(t *testing.T) {
	text, bin := "TEXT num_requests_waiting=7", orcaBinary(t)
	for name, c := range map[string]struct {
		header  http.Header
		waiting float64 // negative: none
		fails   bool
	}{
		"none":       {http.Header{}, -1, false},
		"text":       {http.Header{ORCAHeader: {text}}, 7, false},
		"binary":     {http.Header{ORCAHeader + "-Bin": {bin}}, 3, false},
		"both":       {http.Header{ORCAHeader: {text}, ORCAHeader + "-Bin": {bin}}, 7, false},
		"unreadable": {http.Header{ORCAHeader: {"TEXT =7"}}, -1, true},
		"no name":    {http.Header{ORCAHeader: {":7"}}, -1, true},
	} {
		report, err := ORCAOf(c.header)
		if (err != nil) != c.fails || (report == nil) != (c.waiting < 0) {
			t.Errorf("%s: %v, %v", name, report, err)
			continue
		}
		if l, _ := FromORCA(report); report != nil && l.Waiting != known(c.waiting) {
			t.Errorf("%s: %+v", name, l)
		}
	}
}
