package spans

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-gateway/tandem/pd/decision"
)

// Why a request is given servers again.
const (
	Retry        = "retry"        // a leg failed before the client had anything
	Continuation = "continuation" // a stream broke, and its rest comes from other servers
)

// Cause is the failed leg behind which a request is given servers again.
type Cause struct {
	Why  string // Retry or Continuation
	Span trace.SpanContext
	Leg  string
	At   string // the server's ID
	Kind string // of failure
}

// CauseOf is the cause that the span of a failed leg makes, nil where that is not traced.
func CauseOf(why string, span trace.SpanContext, leg, at, kind string) *Cause {
	if !span.IsSampled() {
		return nil
	}
	return &Cause{Why: why, Span: span, Leg: leg, At: at, Kind: kind}
}

// StartChoice begins a choice of servers. One that follows a failed leg (cause is not nil) is linked
// to that leg's span, and says why itself too: not every viewer shows the attributes of links.
func StartChoice(ctx context.Context, tracer trace.Tracer, cause *Cause) (context.Context, trace.Span) {
	if cause == nil || isOff(tracer) || isUntraced(ctx) {
		return Start(ctx, tracer, "choose")
	}
	why := []attribute.KeyValue{
		attribute.String("tandem.cause", cause.Why), attribute.String("tandem.cause.leg", cause.Leg),
		attribute.String("tandem.cause.server", cause.At), attribute.String("tandem.cause.error", cause.Kind),
	}
	return tracer.Start(ctx, "choose", trace.WithAttributes(why...), trace.WithLinks(trace.Link{SpanContext: cause.Span, Attributes: why}))
}

// RecordChoice records the servers that were chosen, and the terms of their cost in seconds: those
// up to step make the time to the first step of decode, all together are what pairs are compared by.
func RecordChoice(span trace.Span, c *decision.Choice) {
	if !span.IsRecording() {
		return
	}
	terms := &c.Chosen.Terms
	cached, _ := c.PredictedCache()
	prefills, decodes := c.Candidates.Count()
	if c.Chosen.Prefill != "" {
		span.SetAttributes(attribute.String("tandem.prefill", c.Chosen.Prefill))
	}
	span.SetAttributes(
		attribute.String("tandem.decode", c.Chosen.Decode),
		attribute.Int("tandem.candidates.prefill", prefills),
		attribute.Int("tandem.candidates.decode", decodes),
		attribute.Int("tandem.prompt_tokens", c.Demand.PromptTokens),
		attribute.Int("tandem.cached_tokens_predicted", cached),
		seconds("tandem.ttft_predicted_seconds", terms.TTFT()),
		attribute.Int("tandem.cost.misses", c.Chosen.Misses),
		seconds("tandem.cost.total_seconds", terms.Total()),
		seconds("tandem.cost.ready_seconds", terms.Ready),
		seconds("tandem.cost.queue_seconds", terms.Queue),
		seconds("tandem.cost.prefill_seconds", terms.Prefill),
		seconds("tandem.cost.transfer_seconds", terms.Transfer),
		seconds("tandem.cost.kv_room_seconds", terms.KVRoom),
		seconds("tandem.cost.step_seconds", terms.Step),
		seconds("tandem.cost.decode_seconds", terms.DecodeCost),
		seconds("tandem.cost.delay_to_others_seconds", terms.DelayToOthers),
		seconds("tandem.cost.hardware_mismatch_seconds", terms.HardwareMismatch),
		seconds("tandem.cost.eviction_seconds", terms.Eviction),
	)
	if c.Reason != "" {
		span.SetAttributes(attribute.String("tandem.aggregated_because", c.Reason))
	}
}

func seconds(key string, d time.Duration) attribute.KeyValue {
	return attribute.Float64(key, d.Seconds())
}

// failedAs is the kind of a failure, as the conventions call it.
func failedAs(kind string) attribute.KeyValue { return semconv.ErrorTypeKey.String(kind) }
