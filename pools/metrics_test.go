package pools

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-gateway/tandem/pools/breaker"
	"github.com/tandem-gateway/tandem/pools/curve"
	"github.com/tandem-gateway/tandem/pools/load"
)

// exposed are the metrics of a fleet as lines, sorted. It fails the test where Prometheus
// would refuse them.
func exposed(t *testing.T, f *Fleet) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			v := m.GetGauge().GetValue()
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				v = m.GetCounter().GetValue()
			case dto.MetricType_SUMMARY:
				v = m.GetSummary().GetSampleSum()
			}
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), v))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// What operators see of a fleet in which much has happened: testdata/metrics.txt.
func TestCollector_ShowsTheFleet(t *testing.T) {
	var got string
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, func(c *Config) { c.Adapters.Directory = []Adapter{{Name: "law"}} },
			spec("http://10.0.1.1:1", Prefill), spec("http://10.0.1.2:1", Prefill),
			spec("http://10.0.2.1:1", Decode), spec("http://10.0.2.2:1", Decode), spec("http://10.0.2.3:1", Decode),
			Spec{URL: "http://10.0.3.1:1", Role: Both, Connector: "mooncake"})
		s := f.Servers()
		p1, p2, d1, d2, d3, both := s[0], s[1], s[2], s[3], s[4], s[5]
		p1.MarkDown("connection refused")
		p2.MarkDown("connection refused")
		d1.ProbePassed(d1.Health(), models("m ada<m eve<m"), time.Now())
		d1.RecordAdapterLoad(Adapter{Name: "law"}, Model{ID: "m"}, time.Second)
		d1.RecordAdapterLoad(Adapter{Name: "law"}, Model{ID: "m"}, time.Second)
		d1.RecordAdapterUnload("ada")
		adapted := claim(t, d1, Decode, curve.Work{})
		adapted.Prepare("law") // it has it
		adapted.Release()
		for range 3 {
			d1.RecordFailedAdapterLoad()
		}
		d2.ProbeLate(time.Now().Add(time.Second))
		d3.BeginProbeRequest(Decode, time.Now()).End(errEngine, time.Now())
		both.ProbePassed(both.Health(), models("n n k"), time.Now())
		both.BeginProbeRequest(Prefill, time.Now()).End(nil, time.Now())
		both.BeginProbeRequest(Prefill, time.Now()).End(nil, time.Now())
		both.BeginProbeRequest(Prefill, time.Now()).End(breaker.ErrWrongAnswer, time.Now())
		both.RecordORCA(http.Header{load.ORCAHeader: {"TEXT num_requests_waiting=7, num_requests_running=2, kv_cache_usage_perc=0.5, max_token_capacity=9000"}}, time.Now())
		both.RecordORCA(http.Header{load.ORCAHeader: {"TEXT nonsense"}}, time.Now())
		both.RecordORCA(http.Header{load.ORCAHeader: {"TEXT nonsense"}}, time.Now())
		claim(t, d1, Decode, curve.Work{Tokens: 100})
		claim(t, d1, Decode, curve.Work{Tokens: 11})
		claim(t, both, Decode, curve.Work{Tokens: 5})
		got = exposed(t, f)
	})
	want, err := os.ReadFile(filepath.Join("testdata", "metrics.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the metrics are\n%s", got)
	}
}

// Servers that make pairs are counted as such; where too many are ejected all are used, which
// each of them shows.
func TestCollector_ShowsPairsAndPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := upFleet(t, nil, spec("http://10.0.1.1:1", Prefill), spec("http://10.0.2.1:1", Decode), spec("http://10.0.2.2:1", Decode))
		expect := func(when string, lines ...string) {
			t.Helper()
			got := exposed(t, f)
			for _, line := range lines {
				if !strings.Contains(got, line+"\n") {
					t.Errorf("%s: %s is not in\n%s", when, line, got)
				}
			}
		}
		expect("at first", "tandem_pool_pairs{model=m} 2", "tandem_pool_panic{model=m,role=decode} 0",
			"tandem_breaker_would_eject{leg=decode,server=10.0.2.1:1} 0", "tandem_role_missing{role=prefill} 0")
		for _, s := range f.Servers()[1:] {
			trip(t, s)
		}
		expect("all that decode are ejected", "tandem_pool_panic{model=m,role=decode} 1", "tandem_pool_panic{model=m,role=prefill} 0",
			"tandem_breaker_would_eject{leg=decode,server=10.0.2.1:1} 1", "tandem_breaker_would_eject{leg=decode,server=10.0.2.2:1} 1",
			"tandem_breaker_would_eject{leg=prefill,server=10.0.1.1:1} 0", "tandem_breaker_state{leg=decode,server=10.0.2.1:1} 2")
		time.Sleep(2 * time.Second)
		expect("after the ejection", "tandem_breaker_state{leg=decode,server=10.0.2.1:1} 1")
	})
}
