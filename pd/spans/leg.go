package spans

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/api"
)

// Leg is the span of one use of a server, from sending the request to the end of what it answers.
// The zero value records nothing.
type Leg struct{ span trace.Span }

// StartLeg begins a leg on a server. attempt is the request id that the engine sees. What is sent
// with the context names the leg's span as its parent: of a request that is not traced, too, so that
// what engines trace by themselves can be told apart by leg.
func StartLeg(ctx context.Context, tracer trace.Tracer, name, server, attempt string) (context.Context, Leg) {
	if isOff(tracer) {
		return ctx, Leg{}
	}
	if isUntraced(ctx) {
		ctx, span := tracer.Start(ctx, name)
		return ctx, Leg{span}
	}
	ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("tandem.server", server),
		attribute.String("tandem.attempt", attempt)))
	return ctx, Leg{span}
}

// StartPrepare begins the wait for the servers of legs that are not ready: it fails as a leg does.
func StartPrepare(ctx context.Context, tracer trace.Tracer) (context.Context, Leg) {
	ctx, span := Start(ctx, tracer, "prepare")
	return ctx, Leg{span}
}

func (l Leg) isRecording() bool { return l.span != nil && l.span.IsRecording() }

// Context is what a retry is linked to.
func (l Leg) Context() trace.SpanContext {
	if l.span == nil {
		return trace.SpanContext{}
	}
	return l.span.SpanContext()
}

// SetKind says what the leg is for: "decode" with a hand-off, "alone" without one, "piece" of a
// prompt, or "fetch", for prefill, of what decode holds.
func (l Leg) SetKind(kind string) {
	if l.isRecording() {
		l.span.SetAttributes(attribute.String("tandem.leg", kind))
	}
}

// SetPiece says which piece of a prompt it computes, the first being 1, and up to which token.
func (l Leg) SetPiece(number, upTo int) {
	if l.isRecording() {
		l.span.SetAttributes(attribute.Int("tandem.piece", number), attribute.Int("tandem.prompt_tokens", upTo))
	}
}

// Handoff is the KV that decode fetches.
type Handoff struct {
	Tokens        int     // of the prompt; 0: none is handed over
	BytesPerToken float64 // as the transfer was priced
	// Gap is from prefill's answer to sending decode; negative where decode does not wait for it.
	Gap time.Duration
}

// RecordHandoff records what decode is to fetch, and for how long it waited for being fetched.
func (l Leg) RecordHandoff(h Handoff) {
	if !l.isRecording() {
		return
	}
	if h.Tokens > 0 {
		l.span.SetAttributes(attribute.Int("tandem.handoff.tokens", h.Tokens), attribute.Int("tandem.handoff.bytes", int(float64(h.Tokens)*h.BytesPerToken)))
	}
	if h.Gap >= 0 {
		l.span.SetAttributes(seconds("tandem.handoff.gap_seconds", h.Gap))
	}
}

// RecordPrefilled records what a prefill leg answered: whether its server keeps the KV for decode, of
// how many tokens, and how many of them it had cached.
func (l Leg) RecordPrefilled(kept bool, tokens int, cached api.Count, predicted time.Duration) {
	if !l.isRecording() {
		return
	}
	l.span.SetAttributes(attribute.Bool("tandem.handoff", kept), attribute.Int("tandem.prompt_tokens", tokens),
		seconds("tandem.prefill_predicted_seconds", predicted))
	if cached.Known {
		l.span.SetAttributes(attribute.Int("tandem.cached_tokens", cached.Tokens))
	}
}

// RecordFirst marks the first content of a stream.
func (l Leg) RecordFirst(at time.Time) {
	if l.isRecording() {
		l.span.AddEvent("first content", trace.WithTimestamp(at))
	}
}

// End ends a leg that did what it was to do, or whose client left. Once it has ended, nothing changes
// it.
func (l Leg) End() {
	if l.span != nil {
		l.span.End()
	}
}

// Fail ends a leg that failed: with what kind of failure, the status that the engine answered (0
// without one), and the error. It returns what a retry is linked to.
func (l Leg) Fail(kind string, status int, err error) trace.SpanContext {
	if l.isRecording() {
		l.span.SetAttributes(failedAs(kind))
		if status != 0 {
			l.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		}
		l.span.SetStatus(codes.Error, err.Error())
		l.span.End()
	}
	return l.Context()
}
