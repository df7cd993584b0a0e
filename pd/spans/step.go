package spans

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Start begins a step of a request. Where the request is not traced nothing begins, and the context
// stays the request's.
func Start(ctx context.Context, tracer trace.Tracer, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if isOff(tracer) || isUntraced(ctx) {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return tracer.Start(ctx, name, options...)
}

// isOff reports whether a tracer is that of a gateway without a collector.
func isOff(tracer trace.Tracer) bool {
	_, off := tracer.(noop.Tracer)
	return off
}

// isUntraced reports whether a context belongs to a request whose span is not recorded. One that
// belongs to no request may begin a trace.
func isUntraced(ctx context.Context) bool {
	request := trace.SpanFromContext(ctx)
	return request.SpanContext().IsValid() && !request.IsRecording()
}

// RecordPrompt records what is known of a prompt: whether its tokens are, and how many it has.
func RecordPrompt(span trace.Span, tokensKnown bool, tokens int) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Bool("tandem.tokens_known", tokensKnown), attribute.Int("tandem.prompt_tokens", tokens))
	}
}

// EndAdmit ends an admission. status is what a client got that was refused, 0 where that is not known.
func EndAdmit(span trace.Span, admitted bool, status int) {
	if !admitted && span.IsRecording() {
		span.SetStatus(codes.Error, "refused")
		if status != 0 {
			span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		}
	}
	span.End()
}

// EndStream ends the relaying of a stream of so many content events, with what broke it.
func EndStream(span trace.Span, events int, failed error) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("tandem.events", events))
	}
	End(span, failed)
}

// End ends a step, with an error if there was one.
func End(span trace.Span, err error) {
	if err != nil && span.IsRecording() {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
