package histogram

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.opentelemetry.io/otel/trace"
)

// A value leads to the trace that it was measured in, where that one is sent to a collector; native
// buckets are kept where they are asked for, beside the fixed ones.
func TestObserve_NamesTheTraceThatIsKept(t *testing.T) {
	for name, x := range map[string]struct {
		native bool
		flags  trace.TraceFlags
		want   string
	}{
		"sampled":             {false, trace.FlagsSampled, "01000000000000000000000000000000"},
		"sampled, native too": {true, trace.FlagsSampled, "01000000000000000000000000000000"},
		"not sampled":         {false, 0, ""},
	} {
		reg := prometheus.NewPedanticRegistry()
		h := Config{Native: x.native}.New(reg, "h_seconds", "A time.", []float64{1, 2}, "model")
		span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: x.flags})
		Observe(trace.ContextWithSpanContext(context.Background(), span), h.WithLabelValues("m"), 1.5)
		families, err := reg.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("%s: %d metrics, %v", name, len(families), err)
		}
		got := families[0].GetMetric()[0].GetHistogram()
		if trace := exemplar(got); trace != x.want {
			t.Errorf("%s: leads to the trace %q, want %q", name, trace, x.want)
		}
		if native := len(got.GetPositiveSpan()) > 0; native != x.native || len(got.GetBucket()) != 2 || got.GetSampleCount() != 1 {
			t.Errorf("%s: native %v, %v", name, native, got)
		}
	}
}

// exemplar is the trace that a fixed bucket leads to.
func exemplar(h *dto.Histogram) string {
	for _, b := range h.GetBucket() {
		for _, l := range b.GetExemplar().GetLabel() {
			return l.GetValue()
		}
	}
	return ""
}
