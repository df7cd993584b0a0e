package main

import (
	"strings"
	"testing"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
)

func TestPrintTrace(t *testing.T) {
	text := func(s string) *commonv1.AnyValue {
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
	}
	const ms = 1_000_000
	var out strings.Builder
	printTrace(&out, []*tracev1.Span{
		{Name: "request", SpanId: []byte("a"), StartTimeUnixNano: 5 * ms, EndTimeUnixNano: 105 * ms, Attributes: []*commonv1.KeyValue{
			{Key: "share", Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_DoubleValue{DoubleValue: 0.123456}}},
			{Key: "count", Value: &commonv1.AnyValue{Value: &commonv1.AnyValue_IntValue{IntValue: 7}}},
			{Key: "long", Value: text(strings.Repeat("x", treeWidth))},
		}},
		{Name: "prefill", SpanId: []byte("b"), StartTimeUnixNano: 6 * ms, EndTimeUnixNano: 7 * ms, Status: &tracev1.Status{Code: tracev1.Status_STATUS_CODE_ERROR, Message: "gone"}},
		{
			Name: "choose", SpanId: []byte("c"), StartTimeUnixNano: 8 * ms, EndTimeUnixNano: 9 * ms,
			Events: []*tracev1.Span_Event{{Name: "first content", TimeUnixNano: 8*ms + ms/2}}, Links: []*tracev1.Span_Link{{SpanId: []byte("b")}},
		},
	})
	want := `[0] request  at 0.0 ms, took 100.0 ms
│       share=0.123  count=7
│       long=` + strings.Repeat("x", treeWidth) + `
├─ [1] prefill  at 1.0 ms, took 1.0 ms, ERROR gone
└─ [2] choose  at 3.0 ms, took 1.0 ms
        event "first content" at 3.5 ms  link to [1]
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
