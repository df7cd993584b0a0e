package evaluate

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/histogram"
)

// value is what a metric of the model m has: of a counter its value, of a histogram its sum.
func value(t *testing.T, reg prometheus.Gatherer, name, what string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && labelOf(m, "model") == "m" && labelOf(m, "what") == what {
				return m.GetCounter().GetValue() + m.GetHistogram().GetSampleSum()
			}
		}
	}
	t.Fatalf("there is no %s of %q", name, what)
	return 0
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// What a pair saves the prompt and what it saves streams are apart, and so are savings and losses:
// each only grows.
func TestObservePair_SavingsAndLossesAreApart(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg, histogram.Config{})
	alone := cost.Terms{Prefill: 2 * time.Second, Step: time.Second, DecodeCost: 3 * time.Second, DelayToOthers: 4 * time.Second}
	pair := cost.Terms{Prefill: time.Second, DecodeCost: 2 * time.Second, DelayToOthers: time.Second}
	m.ObservePair("m", &pair, &alone, 500*time.Millisecond) // 2.5 s and 4 s saved
	m.ObservePair("m", &pair, &alone, 10*time.Second)       // 7 s lost, 4 s saved
	m.ObservePair("m", &alone, &pair, time.Second)          // neither, 4 s lost
	for name, want := range map[string][2]float64{
		"tandem_disaggregation_saved_seconds_total": {2.5, 8},
		"tandem_disaggregation_lost_seconds_total":  {7, 4},
	} {
		for i, what := range []string{"prompts", "streams"} {
			if got := value(t, reg, name, what); got != want[i] {
				t.Errorf("%s of %s: %v, want %v", name, what, got, want[i])
			}
		}
	}
}

// Ratios are of what was predicted over what came, and transfers are without what is decode's own.
func TestMetrics_RatiosArePredictedOverTaken(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg, histogram.Config{})
	ctx := t.Context()
	m.ObserveTTFT(ctx, "m", 3*time.Second, 2*time.Second)
	m.ObserveTTFT(ctx, "m", time.Second, 0) // says nothing
	m.ObserveOutput("m", 10, 40)
	m.ObservePrompt("m", 100, 80)
	m.ObserveTransfer(ctx, "m", &cost.Terms{Transfer: 300 * time.Millisecond, Step: 100 * time.Millisecond}, 1e6, 200*time.Millisecond)
	m.ObserveTransfer(ctx, "m", &cost.Terms{Step: 2 * time.Second}, 1, time.Second) // no time is less than none
	for name, want := range map[string]float64{
		"tandem_ttft_prediction_ratio": 1.5, "tandem_output_prediction_ratio": .25, "tandem_prompt_prediction_ratio": 1.25,
		"tandem_transfer_prediction_ratio": 4, "tandem_transfer_seconds": .1, "tandem_transfer_bytes_total": 1e6 + 1,
	} {
		if got := value(t, reg, name, ""); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// Answers whose lengths differ are predicted right on the whole by their mean, though most of their ratios are not 1 and
// their mean is far from it: that of the short one is what an alert on it would wait for.
func TestObserveOutput_CountsTokensThatArePredictedAndThere(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := New(reg, histogram.Config{})
	for _, tokens := range []int{10, 100, 490} {
		m.ObserveOutput("m", 200, tokens)
	}
	for what, want := range map[string]float64{"predicted": 600, "counted": 600} {
		if got := value(t, reg, "tandem_output_prediction_tokens_total", what); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	if mean := value(t, reg, "tandem_output_prediction_ratio", "") / 3; mean < 7 {
		t.Errorf("the mean of the ratios is %v", mean)
	}
}
