package spans

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-gateway/tandem/pd/api"
	"github.com/tandem-gateway/tandem/pd/cost"
	"github.com/tandem-gateway/tandem/pd/decision"
)

// A request that is not traced costs the spans whose ids engines get, its own and those of legs, and
// nothing more.
func TestStart_AllocatesNothingOfWhatIsNotTraced(t *testing.T) {
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("")
	ctx, request := StartRequest(t.Context(), tracer, "id", api.Chat)
	cause, choice, failed := &Cause{Why: Retry}, &decision.Choice{}, errors.New("gone")
	root := RootOf(ctx)
	legCtx, leg := StartLeg(ctx, tracer, "prefill", "server", "attempt")
	if id := trace.SpanContextFromContext(legCtx).SpanID(); id == request.SpanContext().SpanID() || id != leg.Context().SpanID() {
		t.Error("engines get the request's span, not the leg's")
	}
	if n := testing.AllocsPerRun(100, func() {
		same, step := Start(ctx, tracer, "wait")
		RecordPrompt(step, true, 1)
		End(step, failed)
		_, chosen := StartChoice(ctx, tracer, cause)
		RecordChoice(chosen, choice)
		leg.SetKind("piece")
		leg.SetPiece(1, 2)
		leg.RecordHandoff(Handoff{Tokens: 1})
		leg.RecordPrefilled(true, 1, api.Count{}, 1)
		leg.RecordFirst(time.Time{})
		leg.Fail("broken", 500, failed)
		root.RecordFirst(choice, 1)
		root.RecordUsage(choice)
		root.RecordAttempts(1, 1)
		if same != ctx || CauseOf(Retry, leg.Context(), "", "", "") != nil {
			t.Error("the context is another one, or a retry has a cause")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if request.IsRecording() || !request.SpanContext().IsValid() {
		t.Error("engines get no ids")
	}
}

// Without a collector there are no spans: nothing is allocated, and engines get the trace that the client
// sent, or none, by which they would leave their own out.
func TestStart_WithoutACollectorEnginesGetTheClientsTrace(t *testing.T) {
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	for name, x := range map[string]struct {
		ctx  context.Context
		want trace.SpanContext
	}{
		"a client's trace": {trace.ContextWithRemoteSpanContext(t.Context(), remote), remote},
		"none":             {t.Context(), trace.SpanContext{}},
	} {
		if n := testing.AllocsPerRun(100, func() {
			ctx, request := StartRequest(x.ctx, noop.Tracer{}, "id", api.Chat)
			_, step := Start(ctx, noop.Tracer{}, "wait")
			End(step, errors.New("gone"))
			_, choice := StartChoice(ctx, noop.Tracer{}, nil)
			RecordChoice(choice, nil)
			legCtx, leg := StartLeg(ctx, noop.Tracer{}, "prefill", "server", "attempt")
			leg.Fail("broken", 500, nil)
			EndRequest(request, Outcome{})
			if got := trace.SpanContextFromContext(legCtx); !got.Equal(x.want) || CauseOf(Retry, leg.Context(), "", "", "") != nil {
				t.Errorf("%s: engines get %v", name, got)
			}
		}); n > 1 { // the error
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func TestSlowFirst(t *testing.T) {
	const ms = time.Millisecond
	for _, x := range []struct {
		took, predicted, objective time.Duration
		want                       string
	}{
		{500 * ms, 400 * ms, 0, ""},
		{500 * ms, 240 * ms, 0, overPredicted},
		{500 * ms, 240 * ms, 500 * ms, overPredicted},
		{501 * ms, 500 * ms, 500 * ms, overObjective},
		{501 * ms, 1 * ms, 500 * ms, overObjective},
		{100 * ms, 1 * ms, 0, ""}, // what is soon need not be exact
		{102 * ms, 1 * ms, 0, overPredicted},
	} {
		if got := slowFirst(x.took, x.predicted, x.objective); got != x.want {
			t.Errorf("%v, predicted %v, objective %v: %q, want %q", x.took, x.predicted, x.objective, got, x.want)
		}
	}
}

// What ended stays as it was: a stream that broke is closed later, when another one has begun.
func TestLeg_EndsOnce(t *testing.T) {
	ended := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended)).Tracer("")
	ctx, request := StartRequest(t.Context(), tracer, "id", api.Chat)
	_, leg := StartLeg(ctx, tracer, "decode", "server", "attempt")
	span := leg.Fail("broken_stream", 0, errors.New("cut"))
	leg.End()
	leg.Fail("other", 500, errors.New("other"))
	cause := CauseOf(Continuation, span, "decode", "server", "broken_stream")
	_, choice := StartChoice(ctx, tracer, cause)
	End(choice, nil)
	request.End()
	spans := ended.Ended()
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	if got := spans[0]; got.Status().Description != "cut" || value(got, "error.type") != "broken_stream" || value(got, "http.response.status_code") != "" {
		t.Errorf("%v %v", got.Status(), got.Attributes())
	}
	if links := spans[1].Links(); len(links) != 1 || !links[0].SpanContext.Equal(span) {
		t.Errorf("the choice is linked to %v", links)
	}
}

func TestRequest_NamesOperationsByTheConventions(t *testing.T) {
	for d, want := range map[*api.Dialect]string{
		api.Chat: "chat", api.Responses: "chat", api.Messages: "chat", api.Completions: "text_completion", api.Generate: "text_completion",
		api.Embeddings: "embeddings", api.CohereEmbed: "embeddings", api.Tokenize: "",
	} {
		ended := tracetest.NewSpanRecorder()
		_, span := StartRequest(context.Background(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended)).Tracer(""), "id", d)
		RecordRequest(span, Request{Model: "m", Dialect: d, Tenant: "ada", Class: "batch"})
		EndRequest(span, Outcome{Outcome: "ok", Status: 200, Output: -1})
		got := ended.Ended()[0]
		if value(got, "gen_ai.operation.name") != want || value(got, "tandem.tenant") != "ada" || value(got, "tandem.class") != "batch" || value(got, "gen_ai.usage.output_tokens") != "" {
			t.Errorf("%s: %v", d.Name, got.Attributes())
		}
	}
}

// Only where both times are known is it said how fast tokens came.
func TestRoot_RecordsHowFastTokensCame(t *testing.T) {
	usage := func(output int) api.Usage { return api.Usage{Output: api.Count{Tokens: output, Known: true}} }
	for _, x := range []struct {
		measured   decision.Measured
		objective  time.Duration
		tpot, hint string
	}{
		{decision.Measured{FirstToken: time.Second, Whole: 3 * time.Second, Usage: usage(5)}, time.Second, "0.5", ""},
		{decision.Measured{FirstToken: time.Second, Whole: 3 * time.Second, Usage: usage(5)}, 499 * time.Millisecond, "0.5", overObjective},
		{decision.Measured{FirstToken: time.Second, Whole: 3 * time.Second, Usage: usage(1)}, 1, "", ""},
		{decision.Measured{Whole: 3 * time.Second, Usage: usage(5)}, 1, "", ""},
	} {
		ended := tracetest.NewSpanRecorder()
		ctx, span := StartRequest(context.Background(), sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(ended)).Tracer(""), "id", api.Chat)
		RootOf(ctx).RecordUsage(&decision.Choice{Demand: cost.Demand{ITL: x.objective}, Measured: x.measured})
		span.End()
		if got := ended.Ended()[0]; value(got, "tandem.tpot_seconds") != x.tpot || value(got, samplingHint) != x.hint {
			t.Errorf("%+v: %v", x, got.Attributes())
		}
	}
}

// value is the last value of an attribute, as text, "" without one.
func value(s sdktrace.ReadOnlySpan, key attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}
