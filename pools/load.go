package pools

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Gauge is a reading that may be missing. Missing is unknown, never zero.
type Gauge struct {
	Value float64
	Known bool
}

// Load is what an engine reports of itself.
type Load struct {
	Running  Gauge // requests in the batch
	Waiting  Gauge // requests queued, or on a decode server waiting for remote KV
	KVUsed   Gauge // share of KV blocks in use, 0..1 (the name "_perc" notwithstanding)
	KVTokens Gauge // KV capacity in tokens
	At       time.Time
}

// FreshAt reports whether the load is young enough to believe: three scrapes.
func (l Load) FreshAt(now time.Time, interval time.Duration) bool {
	return !l.At.IsZero() && now.Sub(l.At) <= 3*interval
}

// vLLM's names, newest first (vllm/v1/metrics/loggers.py). They are matched
// exactly: num_requests_waiting_by_reason is another series.
var (
	runningNames = []string{"vllm:num_requests_running"}
	waitingNames = []string{"vllm:num_requests_waiting"}
	kvUsedNames  = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"}
)

const cacheConfigName = "vllm:cache_config_info"

// parseLoad reads a Prometheus exposition. With a rank only the series of that
// engine count; without, counts are summed over the engines and KV use is the
// fullest engine's.
func parseLoad(exposition []byte, rank *int) (load Load, err error) {
	defer func() {
		// expfmt v0.70.1 dereferences nil on some malformed texts.
		if p := recover(); p != nil {
			load, err = Load{}, fmt.Errorf("metrics: the parser failed: %v", p)
		}
	}()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(exposition))
	if err != nil {
		return Load{}, fmt.Errorf("metrics: %w", err)
	}
	sum := func(a, b float64) float64 { return a + b }
	return Load{
		Running:  fold(families, runningNames, rank, sum),
		Waiting:  fold(families, waitingNames, rank, sum),
		KVUsed:   fold(families, kvUsedNames, rank, math.Max),
		KVTokens: kvTokens(families[cacheConfigName], rank),
	}, nil
}

// fold joins the series of the first name that has any.
func fold(families map[string]*dto.MetricFamily, names []string, rank *int, join func(a, b float64) float64) Gauge {
	for _, name := range names {
		var g Gauge
		for _, m := range families[name].GetMetric() {
			v, ok := value(m)
			if !ok || !ofRank(m, rank) {
				continue
			}
			if g.Known {
				v = join(g.Value, v)
			}
			g = Gauge{Value: v, Known: true}
		}
		if g.Known {
			return g
		}
	}
	return Gauge{}
}

// kvTokens is block_size x num_gpu_blocks, which vLLM tells in labels.
func kvTokens(family *dto.MetricFamily, rank *int) Gauge {
	var g Gauge
	for _, m := range family.GetMetric() {
		size, err1 := strconv.ParseFloat(label(m, "block_size"), 64)
		blocks, err2 := strconv.ParseFloat(label(m, "num_gpu_blocks"), 64)
		if err1 != nil || err2 != nil || !ofRank(m, rank) || !(size*blocks > 0) || math.IsInf(size*blocks, 0) {
			continue
		}
		g = Gauge{Value: g.Value + size*blocks, Known: true}
	}
	return g
}

func value(m *dto.Metric) (float64, bool) {
	var v float64
	switch {
	case m.Gauge != nil:
		v = m.Gauge.GetValue()
	case m.Counter != nil:
		v = m.Counter.GetValue()
	case m.Untyped != nil:
		v = m.Untyped.GetValue()
	default:
		return 0, false
	}
	return v, !math.IsNaN(v) && !math.IsInf(v, 0) && v >= 0
}

func ofRank(m *dto.Metric, rank *int) bool {
	engine := label(m, "engine")
	return rank == nil || engine == "" || engine == strconv.Itoa(*rank)
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
